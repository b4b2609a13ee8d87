"""Export of the tables and figures of the papers' results as files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pandas as pd

from classwise.core.errors import unknown
from classwise.core.files.csv_files import write_csv
from classwise.core.files.storage import write_text
from classwise.core.settings.arguments import checked
from classwise.papers import catalogue
from classwise.papers.result import Result, stored_results
from classwise.papers.store import Store
from classwise.reporting.escape import checked_svg
from classwise.reporting.svg import standalone
from classwise.reporting.tables import Table

FORMATS = ("csv", "md", "tex", "svg")
"""The formats of tables, and that of figures."""


@checked
def export(
    papers: Sequence[str], store: str | os.PathLike[str], folder: str | os.PathLike[str], formats: Collection[str]
) -> list[Path]:
    """Write the tables and figures that the pages of papers show; existing files of the same names are replaced.

    The files are ``PAPER/ITEM-SCALE-NUMBER.FORMAT``, tables and figures numbered each from 1, of the largest scale at
    which an item has a result. Cells of CSV files are texts as on the page; intervals and other small print have
    columns of their own.

    Args:
        papers: names such as ``kdd21``; empty for all papers.
        store: folder of the store.
        folder: output folder; created if it does not exist.
        formats: any of ``csv``, ``md``, ``tex`` (booktabs) for tables, ``svg`` for figures.

    Returns:
        The written files, in the order of writing.

    Raises:
        ClasswiseError: if a format or a paper is unknown, the store is missing, a result is damaged, or a file cannot
            be written.

    Example:
        >>> import classwise as cw
        >>> cw.papers.export(["cfa23"], "runs/papers", "files", ["gif"])
        Traceback (most recent call last):
            ...
        classwise.core.errors.ClasswiseError: unknown format 'gif'; known: csv, md, svg, tex
    """
    for kind in formats:
        if kind not in FORMATS:
            raise unknown("format", kind, FORMATS)
    items = [item.id for name in papers or catalogue.papers() for item in catalogue.paper(name).items]
    found = stored_results(Store(store, create=False))
    return [file for item in items for result in found[item][:1] for file in _files(result, Path(folder), formats)]


def _files(result: Result, folder: Path, formats: Collection[str]) -> Iterator[Path]:
    """Write the tables and figures of a result."""
    paper, _, item = result.item.partition("/")
    for number, table in enumerate(result.tables, 1):
        stem = folder / paper / f"{item}-{result.scale}-{number}"
        if "csv" in formats:
            yield write_csv(f"{stem}.csv", _frame(table))
        if "md" in formats:
            yield _text(f"{stem}.md", table.markdown())
        if "tex" in formats:
            yield _text(f"{stem}.tex", table.latex(f"{paper}-{stem.name}"))
    if "svg" in formats:
        for number, figure in enumerate(result.figures, 1):
            stem = folder / paper / f"{item}-{result.scale}-{number}"
            yield _text(f"{stem}.svg", standalone(str(checked_svg(figure.svg))))


def _text(file: str, text: str) -> Path:
    write_text(file, text)
    return Path(file)


def _frame(table: Table) -> pd.DataFrame:
    """The texts of a table; a column with small print is followed by one for it. Equal heads are numbered."""
    columns: dict[str, list[str]] = {table.heads[0]: [row.name for row in table.rows]}
    for place, head in enumerate(table.heads[1:]):
        cells, times = [row.cells[place] for row in table.rows], table.heads[1 : place + 2].count(head)
        name = head if times == 1 else f"{head} ({times})"
        columns[name] = [cell.text for cell in cells]
        if any(cell.span for cell in cells):
            columns[f"{name}, small print"] = [str(cell.span) for cell in cells]
    return pd.DataFrame(columns)
