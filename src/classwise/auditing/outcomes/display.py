"""Base classes of results with a text and an HTML representation, which `classwise.reporting.text.display` defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class TextDisplay:
    """A result whose text is what the command that computes it prints."""


class RichDisplay(TextDisplay):
    """A result with an HTML representation: a figure of its classes, which notebooks show instead of its text."""

    _repr_html_: ClassVar[Callable[[Any], str]]
