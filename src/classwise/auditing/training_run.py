"""The training run of an audited model; torch is imported only if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.auditing.run.result import Audit

if TYPE_CHECKING:
    from classwise.training.folder import Run


def run_of(audit: Audit) -> Run | None:
    """The run whose folder contains the audit as ``audits/<name>``, or None."""
    if audit.path is None:
        return None
    folder = audit.path.resolve().parent.parent
    if not (folder / "recipe.yaml").is_file():
        return None
    from classwise.training.folder import Run

    return Run.open(folder)
