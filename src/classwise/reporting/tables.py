"""Tables for people: one form, written as HTML by a template, or as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from classwise.reporting.escape import markdown_text


class Cell(NamedTuple):
    """A number as text, and its interval (or whatever else stands small below it)."""

    text: str
    span: str = ""


@dataclass(frozen=True)
class Row:
    """A named row; ``weak`` sets off the worst one, ``good`` the best."""

    name: str
    cells: Sequence[Cell]
    weak: bool = False
    good: bool = False


@dataclass(frozen=True)
class Table:
    """Heads (that of the row names first) and rows.

    Attributes:
        caption: what the table shows.
        heads: one for the names and one for each cell of a row.
        rows: from the top.
        note: a sentence below the table.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Row] = field(default_factory=tuple)
    note: str = ""

    def first(self, most: int) -> Table:
        """The table cut after ``most`` rows, with a note of what is missing."""
        if len(self.rows) <= most:
            return self
        note = f"The first {most} of {len(self.rows)} rows; the CSV export has them all."
        return Table(self.caption, self.heads, self.rows[:most], f"{self.note} {note}".strip())

    def markdown(self) -> str:
        """The table in the Markdown of GitHub, intervals in brackets and the set-off row in bold."""
        lines = [_line(map(markdown_text, self.heads)), _line(["---", *("---:" for _ in self.heads[1:])])]
        for row in self.rows:
            cells = [markdown_text(row.name)]
            for cell in row.cells:
                span = f" [{markdown_text(cell.span)}]" if cell.span else ""
                cells.append(f"{markdown_text(cell.text)}{span}")
            lines.append(_line(f"**{cell}**" if (row.weak or row.good) and cell else cell for cell in cells))
        parts = [f"### {markdown_text(self.caption)}", "\n".join(lines)]
        parts += [markdown_text(self.note)] if self.note else []
        return "\n\n".join(parts) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
