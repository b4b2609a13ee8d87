"""Parts of results as text: tables, and the numbers in their cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from classwise.core.errors import printable
from classwise.core.rounding import rounded
from classwise.reporting import formatting
from classwise.reporting.tables import Table
from classwise.stats import Unit


class TextTable(NamedTuple):
    """A table.

    Attributes:
        columns: the heads.
        rows: the cells of each row.
        title: a line above the table.
        optional: heads of the columns that a terminal leaves out if the table is too wide, the first named first.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    optional: Sequence[str] = ()

    def printed(self) -> TextTable:
        """The table with all cells as text, control characters escaped."""
        cells = [[printable(str(cell)) for cell in row] for row in self.rows]
        heads, optional = ([printable(name) for name in names] for names in (self.columns, self.optional))
        return TextTable(heads, cells, printable(self.title), optional)

    def lines(self) -> list[str]:
        """The title and the rows with columns aligned in a terminal; numbers are right-aligned."""
        from rich.cells import cell_len

        table = self.printed()
        rows = [[str(cell) for cell in row] for row in (table.columns, *table.rows)]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        right = [bool(column[1:]) and all(map(is_number, column[1:])) for column in zip(*rows, strict=True)]

        def padded(cell: str, width: int, *, to_right: bool) -> str:
            blanks = " " * (width - cell_len(cell))
            return f"{blanks}{cell}" if to_right else f"{cell}{blanks}"

        aligned = [
            "  ".join(
                padded(cell, width, to_right=to_right) for cell, width, to_right in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in rows
        ]
        return [table.title, *aligned] if table.title else aligned


def joined(parts: Iterable[str | TextTable]) -> str:
    """Lines and tables as one text."""
    lines: list[str] = []
    for part in parts:
        lines += part.lines() if isinstance(part, TextTable) else [printable(part)]
    return "\n".join(lines).rstrip()


def is_number(cell: str) -> bool:
    """Whether a cell is a number, or empty."""
    return not cell or cell[0].isdigit() or cell[0] in "-–+"


def in_unit(value: float, unit: Unit) -> str:
    """Format a metric as `formatting.in_unit`, but a variance always with one decimal."""
    if unit == "fraction squared" and not math.isnan(value):
        return f"{rounded(1e4 * value):.1f}"
    return formatting.in_unit(value, unit)


def spanned_rows(table: Table, form: str = "[{}]") -> list[tuple[object, ...]]:
    """The rows of a table, each cell followed by its interval or bounds in brackets."""
    return [
        (row.name, *(f"{cell.text} {form.format(cell.span)}" if cell.span else cell.text for cell in row.cells))
        for row in table.rows
    ]
