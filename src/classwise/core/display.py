"""Display of results: as text, and in notebooks."""

from __future__ import annotations

from classwise.core.hooks import hooks


class TextDisplay:
    """A result whose text is what the command that computes it prints."""

    def __str__(self) -> str:
        """The text, from the layer of reports, which is loaded on first use."""
        return hooks["text"](self)


class RichDisplay(TextDisplay):
    """A result with an HTML representation: a figure of its classes, which notebooks show instead of its text."""

    def _repr_html_(self) -> str:
        """The HTML, from the layer of reports, which is loaded on first use."""
        return hooks["html"](self)
