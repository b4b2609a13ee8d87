"""The training run of an audited model; torch is imported only if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.auditing.run.result import Audit

if TYPE_CHECKING:
    from classwise.reporting.training_curves import Curves
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


def curves_of_audit(audit: Audit, run: Run | None = None) -> Curves | None:
    """Training curves of ``run``, default: the run whose folder contains the audit; None without an epoch."""
    source = run or run_of(audit)
    if source is None:
        return None
    from classwise.reporting.training_curves import curves_of

    return curves_of(source)
