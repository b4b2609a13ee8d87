"""Titles, legends and row names of figures, for a wide and a narrow layout.

Pages contain the wide layout and, for narrow screens, a second drawing that is `NARROW` pixels wide. Exported figures
have the width of a page or a column in print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from classwise.reporting.svg import Box, Dot, Label, Line, Mark, shorten, width_of

STACKED = 400.0
"""Drawings of a smaller width, in pixels, have the narrow layout: names are above their rows."""
NAME_LINE = 17.0
"""Height of a name above its row, in pixels."""
NAME_SIZE = 12.5
TITLE_SIZE, TITLE_LINE = 13.0, 18.0
LEGEND_SIZE, LEGEND_LINE = 11.5, 17.0


def is_narrow(width: float | None) -> bool:
    """Whether a drawing of this width in pixels has the narrow layout; None: the width of a page."""
    return width is not None and width < STACKED


class RowNames(NamedTuple):
    """Placement of the names of rows.

    Attributes:
        left: where the marks of a row begin, in pixels.
        line: height of the line above the marks that holds the name; 0 if the name is left of them.
        letters: number of letters to which a name is truncated.
    """

    left: float
    line: float
    letters: int

    @staticmethod
    def of(names: Sequence[str], letters: int, *, narrow: bool = False) -> RowNames:
        """Place names in a column left of the marks, or above each row in the narrow layout."""
        if narrow:
            return RowNames(0.0, NAME_LINE, 36)
        return RowNames(max((width_of(shorten(name, letters), NAME_SIZE) for name in names), default=0.0), 0.0, letters)

    def label(self, name: str, top: float, pitch: float, style: str = "text", *, bold: bool = False) -> Label:
        """The name of the row between ``top`` and ``top + pitch``."""
        return Label(0, self.base(top, pitch), shorten(name, self.letters), style, NAME_SIZE, bold=bold)

    def base(self, top: float, pitch: float) -> float:
        """Baseline of the name of a row."""
        return top + 13 if self.line else top + pitch / 2 + 4

    def middle(self, top: float, pitch: float) -> float:
        """Vertical centre of the marks of a row."""
        return top + self.line + (pitch - self.line) / 2

    def grid_line(self, x: float, top: float, pitch: float, rows: int, style: str) -> list[Mark]:
        """A vertical line over all rows, interrupted by names that are between the rows."""
        if not self.line:
            return [Line([(x, top - 3), (x, top + pitch * rows + 3)], style)]
        spans = [(top + pitch * row + self.line, top + pitch * (row + 1)) for row in range(rows)]
        return [Line([(x, first), (x, last)], style) for first, last in spans]


def title_lines(title: str, width: float, size: float = TITLE_SIZE) -> tuple[list[Mark], float]:
    """The title in as many lines as its width requires, and the y coordinate below it."""
    lines = [""]
    for word in title.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer, size, bold=True) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    marks: list[Mark] = [
        Label(0, 14 + TITLE_LINE * place, line, "text", size, bold=True) for place, line in enumerate(lines)
    ]
    return marks, TITLE_LINE * len(lines) + 2


class Key(NamedTuple):
    """An entry of a legend.

    Attributes:
        name: text of the entry.
        style: style of the sample; a ``dot-`` style is a dot, ``bar`` and ``gap`` are boxes, others are lines.
        opacity: opacity of a box.
        text: style of the text.
        bold: whether the text is bold.
    """

    name: str
    style: str
    opacity: float = 1.0
    text: str = "text-soft"
    bold: bool = False


def legend(keys: Sequence[Key], left: float, top: float, width: float) -> tuple[list[Mark], float]:
    """The entries in rows between ``left`` and ``width``, and the y coordinate below them."""
    marks: list[Mark] = []
    x, y = left, top
    letters = int((width - left - 24) / width_of("n", LEGEND_SIZE, bold=True))
    for key in keys:
        text = shorten(key.name, letters)
        wide = 22 + width_of(text, LEGEND_SIZE, bold=key.bold)
        if x > left and x + wide > width:
            x, y = left, y + LEGEND_LINE
        marks += [_sample(key, x, y), Label(x + 20, y + 12, text, key.text, LEGEND_SIZE, bold=key.bold)]
        x += wide + 16
    return marks, y + LEGEND_LINE + 3


def _sample(key: Key, x: float, y: float) -> Mark:
    if key.style.startswith("dot-"):
        return Dot(x + 7, y + 8, 4, key.style)
    if key.style.startswith(("bar", "gap")) and not key.style.endswith("line"):
        return Box(x, y + 3, 14, 10, key.style, key.opacity)
    return Line([(x, y + 8), (x + 14, y + 8)], key.style)
