"""Audits in experiment trackers."""

from __future__ import annotations

from pathlib import Path

from classwise.auditing.run.audit_folder import ABOUT
from classwise.auditing.run.result import Audit
from classwise.auditing.training_run import run_of
from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.training.loggers.base import Logger


@checked
def log_audit(audit: Audit, logger: Logger, page: Path | None = None) -> None:
    """Send an audit to an experiment tracker: accuracies by class, and the page and the outcomes as files.

    The tracker's run is that of the training run whose folder contains the audit; otherwise the audit has its own.

    Args:
        audit: a saved audit; without accuracies if it is incomplete.
        logger: the tracker.
        page: the page of the audit; None: ``page.html`` in its folder, if there is one.

    Raises:
        ClasswiseError: if the audit has no folder, or the tracker rejects it.
    """
    if audit.path is None or not audit.path.is_dir():
        raise ClasswiseError("the audit has no folder; save it before it is logged (Audit.save, or out=)")
    run = run_of(audit)
    page = page or audit.path / "page.html"
    files = [page, audit.path / ABOUT, *sorted((audit.path / "outcomes").glob("*.parquet"))]
    values: dict[str, float] = {}
    if audit.complete:
        values = {f"{name}/{row}": float(value) for name in audit.names for row, value in audit.by_class[name].items()}
        values |= {
            f"{measure}/{name}": float(row[measure])
            for name, row in audit.by_attack.iterrows()
            for measure in ("overall", "worst")
        }
    folder = audit.path if run is None else run.path
    logger.log_audit(folder, audit.path.name, values, [file for file in files if file.is_file()])
