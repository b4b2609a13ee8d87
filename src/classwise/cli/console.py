"""Output of the commands: tables, JSON and progress, for terminals and for logs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import typer

from classwise.core import interruption
from classwise.core.errors import printable
from classwise.core.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

SECONDS_BETWEEN_LINES = 30.0
"""Seconds between progress lines in a log."""


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """A progress listener on stderr: a bar on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    left = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Bars(*columns, *left, console=Console(stderr=True), transient=True) as bars:
        yield Bar(bars)


class Bar:
    """A progress bar on a terminal."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._fresh = True

    def start(self, task: str, total: int) -> None:
        """Start a new bar."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(task, total=total)
        self._fresh = True

    def advance(self, amount: int) -> None:
        """Advance the bar; units done before a resume do not count for the speed."""
        if self._task is None:
            return
        if self._fresh:
            self._bars.reset(self._task, completed=amount)
            self._fresh = False
        else:
            self._bars.advance(self._task, amount)

    def log(self, line: str) -> None:
        """Print the line above the bar."""
        self._bars.console.print(line, highlight=False, markup=False)


class Lines:
    """Progress lines with the time of day, for logs."""

    def __init__(self) -> None:
        self._task, self._total, self._done = "", 0, 0
        self._first: tuple[float, int] | None = None
        self._reported = 0.0

    def start(self, task: str, total: int) -> None:
        """Log the start of a task."""
        self._task, self._total, self._done, self._first = task, total, 0, None
        self._reported = time.monotonic()
        self.log(f"{task}: {total:,} to do")

    def advance(self, amount: int) -> None:
        """Log the progress at intervals."""
        self._done += amount
        now = time.monotonic()
        if self._first is None:  # what a resumed task begins with says nothing about speed
            self._first = (now, self._done)
        if now - self._reported < SECONDS_BETWEEN_LINES:
            return
        self._reported = now
        since, before = self._first
        left = (self._total - self._done) * (now - since) / max(self._done - before, 1)
        share = self._done / max(self._total, 1)
        self.log(f"{self._task}: {self._done:,} of {self._total:,} ({share:.0%}), {duration(left)} left")

    def log(self, line: str) -> None:
        """Print the line with the time of day."""
        print_error(f"{time.strftime('%H:%M:%S')} {line}")


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


def print_error(line: str) -> None:
    """Print a line on stderr; a closed pipe is not an error."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def flush_or_discard(stream: TextIO) -> None:
    """Flush a stream; if its reader is gone, discard the buffer, so that the interpreter does not retry at exit."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Redirect a stream to the null device and discard its buffer."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


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


def duration(seconds: float) -> str:
    """A rounded duration: ``about 40 s``, ``about 12 min``, ``about 3 h 20 min``."""
    if seconds < 90:
        return f"about {math.ceil(seconds)} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 90 else f"about {minutes // 60} h {minutes % 60} min"


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
