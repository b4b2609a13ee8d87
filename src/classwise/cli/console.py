"""Output of the commands: tables and JSON; progress is that of `classwise.core.progress.display`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import typer

from classwise.core.errors import printable
from classwise.core.files.json_values import json_text, json_value
from classwise.core.progress import interruption
from classwise.core.progress.display import Bar, Lines, discard, duration, is_closed, print_error
from classwise.core.progress.display import progress_display as progress
from classwise.reporting.text.layout import TextTable, is_number

if TYPE_CHECKING:
    from classwise.reporting.text.result import Result

__all__ = [
    "Bar",
    "Lines",
    "discard",
    "duration",
    "print_error",
    "progress",
]


def open_streams() -> None:
    """Open null devices for a process that was started without stdout or stderr (``>&-``)."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            stream = open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def flush_or_discard(stream: TextIO) -> None:
    """Flush a stream; if its reader closed it, discard the buffer, so that the interpreter does not retry at exit."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


@contextlib.contextmanager
def resumable(how: str, *, saved: bool = False) -> Iterator[None]:
    """Add a note on how to resume to a stop in this block, if progress was saved, or ``saved`` before it."""
    try:
        yield
    except interruption.STOPS as stop:
        if saved or hasattr(stop, "__notes__"):
            stop.add_note(how)
        raise


@contextlib.contextmanager
def status_decided(*, decided: bool = True) -> Iterator[None]:
    """Print results after the exit status is decided: a closed pipe or terminal does not change it.

    Args:
        decided: whether it is; if not, the error of a closed pipe is raised.
    """
    if not decided:
        yield
        return
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not is_closed(error):
            raise
        discard(sys.stdout)


def echo(*lines: str, err: bool = False) -> None:
    """Print lines on stdout or stderr, with control characters escaped."""
    for line in lines:
        typer.echo(printable(line), err=err)


def show_result(result: Result) -> None:
    """Print a result: its lines and tables."""
    from classwise.reporting.text.result import parts_of

    for part in parts_of(result):
        if isinstance(part, str):
            echo(part)
        else:
            show(*part)


def show(
    columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "", optional: Sequence[str] = ()
) -> None:
    """Print a table: drawn on a terminal, aligned columns elsewhere. Numbers are right-aligned.

    Args:
        columns: the heads.
        rows: the cells of each row.
        title: a line above the table.
        optional: heads of the columns that a terminal leaves out if the table is too wide, the first named first. If it
            still is, each row is printed with one line per cell. No number is cut.
    """
    table = TextTable(columns, rows, title, optional)
    if sys.stdout.isatty():
        _draw(table.printed())
        return
    for line in table.lines():
        typer.echo(line)


def _draw(shown: TextTable) -> None:
    """Draw a table that fits the terminal."""
    from rich.console import Console
    from rich.table import Table

    from classwise.cli.table_layout import fit

    terminal = Console(markup=False, highlight=False)
    columns, title = list(shown.columns), shown.title
    rows = [[str(cell) for cell in row] for row in shown.rows]
    right = [bool(rows) and all(is_number(row[place]) for row in rows) for place in range(len(columns))]
    droppable = [place for name in shown.optional for place, column in enumerate(columns) if column == name]
    text = [not all(is_number(row[place]) or row[place][0] == "[" for row in rows) for place in range(len(columns))]
    places, widths = fit([columns, *rows], terminal.width, text=text, optional=droppable)
    if not widths:
        _print_stacked(columns, rows, title)
        return
    table = Table(title=title or None, title_justify="left")
    for place, width in zip(places, widths, strict=True):
        table.add_column(columns[place], width=width, justify="right" if right[place] else "left", overflow="fold")
    for row in rows:
        table.add_row(*(row[place] for place in places))
    terminal.print(table)
    dropped = [column for place, column in enumerate(columns) if place not in places]
    if dropped:
        terminal.print(f"columns not shown at this width: {', '.join(dropped)}")


def _print_stacked(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """Print a block per row: the first cell, then the others, each below it with its head."""
    if title:
        typer.echo(title)
    indent = max(map(len, columns[1:]), default=0)
    for first, *others in rows:
        typer.echo(f"{columns[0]}: {first}")
        for column, cell in zip(columns[1:], others, strict=True):
            typer.echo(f"  {column.ljust(indent)}  {cell}")


def show_json(value: Any) -> None:
    """Print one JSON value; NaN becomes null, arrays become lists, and what JSON does not have becomes text."""
    typer.echo(json_text(json_value(value), indent=2, ensure_ascii=False, default=str))
