"""Display of results in notebooks."""

from __future__ import annotations

import importlib


class RichDisplay:
    """A result with an HTML representation: a figure of its classes, which notebooks show instead of its text."""

    def _repr_html_(self) -> str:
        """The HTML, from the layer of reports, which is loaded on first use."""
        html: str = importlib.import_module("classwise.reporting.notebook").html(self)
        return html
