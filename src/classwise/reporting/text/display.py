"""How results are displayed: ``str(result)``, and HTML in notebooks."""

from __future__ import annotations

from typing import Any

from classwise.auditing.outcomes.display import RichDisplay, TextDisplay


def define_displays() -> None:
    """Give results their text and HTML; ``import classwise`` calls this, and the modules are loaded on first use."""
    TextDisplay.__str__ = _text  # type: ignore[method-assign]
    RichDisplay._repr_html_ = _html


def _text(result: Any) -> str:
    from classwise.reporting.text.result import text

    return text(result)


def _html(result: Any) -> str:
    from classwise.reporting.pages.notebook import html

    return html(result)
