"""Reports: one self-contained HTML page per audit or comparison; tables as CSV and Markdown, figures as PNG and PDF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from classwise.report.comparing import compare_page as compare_page
    from classwise.report.curving import curve_page as curve_page
    from classwise.report.curving import export_curve as export_curve
    from classwise.report.exporting import export as export
    from classwise.report.exporting import export_comparison as export_comparison
    from classwise.report.pages import page as page
    from classwise.report.robustbench import write_robustbench as write_robustbench

_PUBLIC = {
    "compare_page": "classwise.report.comparing",
    "curve_page": "classwise.report.curving",
    "export": "classwise.report.exporting",
    "export_comparison": "classwise.report.exporting",
    "export_curve": "classwise.report.curving",
    "page": "classwise.report.pages",
    "write_robustbench": "classwise.report.robustbench",
}

__all__ = list(_PUBLIC)  # the keys are strings


def __getattr__(name: str) -> Any:
    """Import a public function when it is first used: naming the package loads neither pandas nor jinja2."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'classwise.report' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)
