"""`report`: write a result as a page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path

from classwise.auditing.compare.compare import Crossing
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.curve.result import Curve
from classwise.auditing.power_plan import PowerPlan
from classwise.auditing.run.result import Audit
from classwise.auditing.worst_class.result import WorstClass
from classwise.core.errors import ClasswiseError
from classwise.core.files.destinations import destination, is_stream
from classwise.core.files.storage import write_text
from classwise.core.settings.arguments import checked
from classwise.reporting.board.result import Board
from classwise.reporting.pages.audit import audit_page
from classwise.reporting.pages.board import board_page
from classwise.reporting.pages.comparison import comparison_page
from classwise.reporting.pages.curve import curve_page
from classwise.reporting.pages.power_plan import power_plan_page
from classwise.reporting.pages.worst_class import worst_class_page
from classwise.training.folder import Run


@checked
def report(
    result: Audit | Board | Comparison | Crossing | Curve | PowerPlan | WorstClass,
    path: str | PathLike[str],
    *,
    run: Run | None = None,
) -> Path:
    """Write a result as one self-contained HTML page; an existing file is replaced.

    The pages of audits and leaderboards stay below 500 KB. For incomplete audits and comparisons of them, the page
    reports bounds instead of estimates and tests.

    Args:
        result: an audit, a leaderboard, a comparison, a robustness curve, a worst-class search or a plan.
        path: path of the HTML file.
        run: the training run of an audited model, for its training curves; by default the run whose folder contains
            the audit.

    Returns:
        The path of the page.

    Raises:
        ClasswiseError: if the file cannot be written, ``result`` is of another type, or ``run`` is passed with a
            result that is not an audit.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> outcomes = cw.Outcomes.from_predictions([0, 1], clean=[0, 1], attacks={"pgd": [0, 0]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cw.report(cw.Audit(outcomes), f"{folder}/page.html").name
        'page.html'
    """
    folder = None if is_stream(destination(path)) else Path(path).parent
    pages: dict[type, Callable[..., str]] = {
        Audit: partial(audit_page, run=run, folder=folder),
        Board: partial(board_page, folder=folder),
        Comparison: comparison_page,
        Crossing: comparison_page,
        Curve: curve_page,
        PowerPlan: power_plan_page,
        WorstClass: worst_class_page,
    }
    kind = type(result)
    if run is not None and kind is not Audit:
        raise ClasswiseError(f"run: accepted only with a result of type Audit, got {kind.__name__}")
    write_text(path, pages[kind](result))
    return Path(path)
