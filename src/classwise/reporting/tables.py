"""Formatted tables, rendered as HTML by a template, as Markdown or as LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from classwise.reporting import formatting
from classwise.reporting.escape import latex_text, markdown_text

MAX_ROWS = 200
"""Maximum number of rows of a table on a page."""


class Cell(NamedTuple):
    """A formatted value, and the text in small print below it, such as its interval; ``good`` prints it in bold."""

    text: str
    span: str = ""
    good: bool = False


def share_cell(share: float, low: float, high: float) -> Cell:
    """A fraction in percent, with its interval."""
    return Cell(formatting.bare_percent(share), formatting.span(low, high))


@dataclass(frozen=True)
class Row:
    """A named row; ``weak`` highlights the worst one, ``good`` the best."""

    name: str
    cells: Sequence[Cell]
    weak: bool = False
    good: bool = False


@dataclass(frozen=True)
class Table:
    """A table with a caption and a note.

    Attributes:
        caption: title of the table.
        heads: column heads; the first one is that of the row names.
        rows: rows from top to bottom.
        note: text below the table.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Row] = field(default_factory=tuple)
    note: str = ""

    @property
    def notes(self) -> str:
        """All text below the table."""
        return self.note

    def first(self, most: int = MAX_ROWS) -> Table:
        """Truncate the table after ``most`` rows and add a note on the omitted ones."""
        if len(self.rows) <= most:
            return self
        omitted = f"The first {most} of {len(self.rows)} rows; the CSV export contains all rows."
        return replace(self, rows=self.rows[:most], note=f"{self.note} {omitted}".strip())

    def select(self, columns: Sequence[str]) -> Table:
        """Keep the columns with these heads, in this order, beside the names of the rows; all columns if none has."""
        places = [self.column(name) for name in columns]
        kept = [place for place in places if place is not None]
        if not kept:
            return self
        rows = [replace(row, cells=[row.cells[place] for place in kept]) for row in self.rows]
        return replace(self, heads=[self.heads[0], *(self.heads[1 + place] for place in kept)], rows=rows)

    def column(self, head: str) -> int | None:
        """The place of a column among the cells, by its head without regard to case and kind of space; None: absent."""
        heads = [plain_head(text) for text in self.heads[1:]]
        return heads.index(plain_head(head)) if plain_head(head) in heads else None

    def markdown(self) -> str:
        """Render GitHub-flavoured Markdown, with intervals in brackets and highlighted rows and cells in bold."""
        lines = [_line(map(markdown_text, self.heads)), _line(["---", *("---:" for _ in self.heads[1:])])]
        for row in self.rows:
            cells = [markdown_text(row.name)]
            for cell in row.cells:
                span = f" [{markdown_text(cell.span)}]" if cell.span else ""
                cells.append(f"{markdown_text(cell.text)}{span}")
            lines.append(_line(f"**{cell}**" if bold and cell else cell for cell, bold in _with_bold(cells, row)))
        parts = [f"### {markdown_text(self.caption)}", "\n".join(lines)]
        parts += [markdown_text(self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"

    def latex(self, label: str = "") -> str:
        """Render a LaTeX ``table`` for the package booktabs: intervals in brackets, highlighted rows in bold.

        Args:
            label: the table is referred to as ``tab:<label>``; empty: it has no label.
        """
        rows = []
        for row in self.rows:
            cells = [latex_text(row.name)]
            for cell in row.cells:
                span = f" {{[}}{latex_text(cell.span)}{{]}}" if cell.span else ""
                cells.append(f"{latex_text(cell.text)}{span}")
            rows.append([f"\\textbf{{{cell}}}" if bold and cell else cell for cell, bold in _with_bold(cells, row)])
        lines = [
            "% requires \\usepackage{booktabs}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{latex_text(self.caption)}}}",
            *([f"\\label{{tab:{label}}}"] if label else []),
            f"\\begin{{tabular}}{{l{'r' * (len(self.heads) - 1)}}}",
            "\\toprule",
            _latex_row(map(latex_text, self.heads)),
            "\\midrule",
            *map(_latex_row, rows),
            "\\bottomrule",
            "\\end{tabular}",
            *([f"\\par\\smallskip\\footnotesize {latex_text(self.notes)}"] if self.notes else []),
            "\\end{table}",
        ]
        return "\n".join(lines) + "\n"


def plain_head(head: str) -> str:
    """A head without regard to case and kind of space."""
    return " ".join(head.split()).casefold()


@dataclass(frozen=True)
class ExplainedTable(Table):
    """A table whose text explains the columns that it has, also after `select`.

    Attributes:
        about_columns: a function of the heads of the columns that returns the text on what they mean.
    """

    about_columns: Callable[[Sequence[str]], str] = field(kw_only=True)

    @property
    def notes(self) -> str:
        """All text below the table."""
        return " ".join(filter(None, (self.note, self.about_columns(self.heads))))


def _with_bold(texts: Sequence[str], row: Row) -> Iterator[tuple[str, bool]]:
    """The texts of a row, its name first, and whether each is in bold."""
    whole = row.weak or row.good
    return zip(texts, (whole, *(whole or cell.good for cell in row.cells)), strict=True)


def _latex_row(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
