"""The training run that an audited model comes from, if there is one: torch is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.auditing.result import Audit

if TYPE_CHECKING:
    from classwise.reporting.training_curves import Curves
    from classwise.training.folder import Run


def run_around(audit: Audit) -> Run | None:
    """The run whose folder holds the audit, under ``audits/<name>``."""
    if audit.path is None:
        return None
    folder = audit.path.resolve().parent.parent
    if not (folder / "recipe.yaml").is_file():
        return None
    from classwise.training.folder import Run

    return Run.open(folder)


def curves_around(audit: Audit, run: Run | None = None) -> Curves | None:
    """The curves of the given run, or of the run whose folder holds the audit; None without a run or an epoch."""
    found = run or run_around(audit)
    if found is None:
        return None
    from classwise.reporting.training_curves import curves_of

    return curves_of(found)
