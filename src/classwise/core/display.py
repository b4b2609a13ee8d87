"""Display of results: as text, and in notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

renderers: dict[str, Callable[[Any], str]] = {}
"""Functions that render a result as ``"text"`` and ``"html"``; the package registers those of its reports."""


class TextDisplay:
    """A result whose text is what the command that computes it prints."""

    def __str__(self) -> str:
        """The text, from the layer of reports, which is loaded on first use."""
        return renderers["text"](self)


class RichDisplay(TextDisplay):
    """A result with an HTML representation: a figure of its classes, which notebooks show instead of its text."""

    def _repr_html_(self) -> str:
        """The HTML, from the layer of reports, which is loaded on first use."""
        return renderers["html"](self)
