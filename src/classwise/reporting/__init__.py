"""Reports: a self-contained HTML page per result, tables as CSV and Markdown, figures as PNG, PDF and SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from classwise.reporting.exports.export import export as export
    from classwise.reporting.exports.robustbench import write_robustbench as write_robustbench
    from classwise.reporting.pages.report import report as report

_PUBLIC = {
    "export": "classwise.reporting.exports.export",
    "report": "classwise.reporting.pages.report",
    "write_robustbench": "classwise.reporting.exports.robustbench",
}

__all__ = list(_PUBLIC)  # the keys are strings


def __getattr__(name: str) -> Any:
    """Import a public function on first use, so that importing the package loads neither pandas nor jinja2."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'classwise.reporting' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)
