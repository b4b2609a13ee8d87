"""Output of the commands: tables and JSON; progress is that of `classwise.core.progress_display`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import typer

from classwise.core import interruption
from classwise.core.errors import printable
from classwise.core.progress_display import Bar, Lines, discard, duration, print_error
from classwise.core.progress_display import progress_display as progress

__all__ = ["Bar", "Lines", "discard", "duration", "print_error", "progress"]


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
    """Flush a stream; if its reader is gone, discard the buffer, so that the interpreter does not retry at exit."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """Add a note on how to resume to a stop in this block, if progress was saved."""
    try:
        yield
    except interruption.STOPS as stop:
        if getattr(stop, "__notes__", ()):
            stop.add_note(how)
        raise


@contextlib.contextmanager
def status_decided() -> Iterator[None]:
    """Print results after the exit status is decided: a closed pipe does not change it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)


def echo(line: str, *, err: bool = False) -> None:
    """Print a line on stdout or stderr, with control characters escaped."""
    typer.echo(printable(line), err=err)


def show(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table: drawn on a terminal, aligned columns elsewhere. Numbers are right-aligned."""
    columns, title = [printable(column) for column in columns], printable(title)
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    right = [bool(cells) and all(_is_number(row[place]) for row in cells) for place in range(len(columns))]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title or None, title_justify="left")
        for column, to_right in zip(columns, right, strict=True):
            table.add_column(column, justify="right" if to_right else "left")
        for row in cells:
            table.add_row(*row)
        Console(markup=False).print(table)
        return
    widths = [max(len(row[place]) for row in [list(columns), *cells]) for place in range(len(columns))]
    if title:
        typer.echo(title)
    for row in [list(columns), *cells]:
        aligned = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        typer.echo("  ".join(aligned).rstrip())


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "-–+"


def show_json(value: Any) -> None:
    """Print one JSON value; NaN becomes null, arrays become lists."""
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int | str | None) else str(value)


def percent(share: float) -> str:
    """A fraction in percent: 0.4235 is ``42.4``; NaN is a dash."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def interval(low: float, high: float) -> str:
    """Two fractions in percent: ``[38.1, 44.3]``."""
    return f"[{percent(low)}, {percent(high)}]"


def percent_squared(share: float) -> str:
    """A variance of fractions in percent squared, as the papers print it."""
    return "–" if math.isnan(share) else f"{10_000 * share:.1f}"
