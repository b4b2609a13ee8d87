"""Display of progress: a bar on a terminal or in a notebook, lines with the time of day in a log."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import stat
import sys
import time
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any, TextIO, cast

from classwise.core.progress.listener import NullProgress, Progress, Timed

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

SECONDS_BETWEEN_LINES = 30.0
"""Default seconds between progress lines in a log."""
SECONDS_BETWEEN_UPDATES = 0.2
"""Seconds between updates of a bar in a notebook."""


@contextlib.contextmanager
def progress_display(seconds: float = SECONDS_BETWEEN_LINES) -> Iterator[Progress]:
    """A progress listener: a bar in a notebook or on a terminal (stderr), plain lines elsewhere.

    Args:
        seconds: seconds between plain lines.
    """
    if in_notebook():
        yield NotebookBar()
        return
    if not sys.stderr.isatty():
        yield Lines(seconds)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    left = (TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    with Bars(*columns, *left, console=Console(file=cast("TextIO", _Terminal(sys.stderr))), transient=True) as bars:
        yield Bar(bars)


@contextlib.contextmanager
def listening(progress: Progress | bool | None, *, active: bool = True) -> Iterator[Progress]:
    """The listener for an argument ``progress``.

    Args:
        progress: a listener; True: `progress_display`; None or False: none.
        active: whether this process reports progress.
    """
    if not active or progress is None or progress is False:
        yield NullProgress()
    elif progress is True:
        with progress_display() as listener:
            yield listener
    else:
        yield progress


def in_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook, which IPython calls a zmq shell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class CellOutput(logging.Handler):
    """Print log records in the output of the running cell, unless the program has configured logging.

    Without a handler Python prints warnings on stderr, which notebooks show in red, as they show errors.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record: ``warning: the text``."""
        if not logging.getLogger().handlers:
            print(f"{record.levelname.lower()}: {self.format(record)}")  # the output of the cell


def log_in_cells() -> None:
    """Log in the output of cells, in a notebook; ``import classwise`` calls this."""
    logger = logging.getLogger("classwise")
    if in_notebook() and not logger.handlers:
        logger.addHandler(CellOutput())


class Bar(Timed):
    """A progress bar on a terminal."""

    def __init__(self, bars: Bars) -> None:
        super().__init__()
        self._bars = bars
        self._task: TaskID | None = None

    def start(self, task: str, total: int) -> None:
        """Start a new bar."""
        super().start(task, total)
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(task, total=total or None, left="")

    def advance(self, amount: int) -> None:
        """Advance the bar."""
        if self._task is None:
            return
        self._bars.advance(self._task, amount)
        if self.is_due(amount, SECONDS_BETWEEN_UPDATES):
            self._bars.update(self._task, left=_left(self))

    def expect(self, low: float, high: float) -> None:
        """Update the time left at intervals."""
        if self.is_due_with(low, high, SECONDS_BETWEEN_UPDATES) and self._task is not None:
            self._bars.update(self._task, left=_left(self))

    def log(self, line: str) -> None:
        """Print the line above the bar."""
        self._bars.console.print(line, highlight=False, markup=False)


class Lines(Timed):
    """Progress lines with the time of day, for logs.

    Args:
        seconds: seconds between lines.
    """

    def __init__(self, seconds: float = SECONDS_BETWEEN_LINES) -> None:
        super().__init__()
        self._seconds = seconds

    def start(self, task: str, total: int) -> None:
        """Log the start of a task."""
        super().start(task, total)
        self.log(f"{task}: {total:,} to do" if total else task)

    def advance(self, amount: int) -> None:
        """Log the progress at intervals."""
        if self.is_due(amount, self._seconds):
            self.log(_state(self))

    def expect(self, low: float, high: float) -> None:
        """Log the progress at intervals."""
        if self.is_due_with(low, high, self._seconds):
            self.log(_state(self))

    def log(self, line: str) -> None:
        """Print the line with the time of day."""
        print_error(f"{time.strftime('%H:%M:%S')} {line}")


class NotebookBar(Timed):
    """A progress bar below the cell of a notebook; log lines are printed."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None

    def start(self, task: str, total: int) -> None:
        """Start a new bar in the same place."""
        super().start(task, total)
        self._show()

    def advance(self, amount: int) -> None:
        """Update the bar at intervals, and at the end."""
        if self.is_due(amount, SECONDS_BETWEEN_UPDATES) or 0 < self.total <= self.done:
            self._show()

    def expect(self, low: float, high: float) -> None:
        """Update the bar at intervals."""
        if self.is_due_with(low, high, SECONDS_BETWEEN_UPDATES):
            self._show()

    def log(self, line: str) -> None:
        """Print the line."""
        print(line)  # the output of the cell

    def _show(self) -> None:
        from IPython.display import display

        text = _state(self)
        known = f' value="{self.done}" max="{self.total}"' if self.total else ""
        # Where HTML is not shown, as in a text export of an executed notebook, the line is.
        bar = {"text/html": f"<progress{known}></progress> {escape(text)}", "text/plain": text}
        if self._handle is None:
            self._handle = display(bar, raw=True, display_id=True)
        else:
            self._handle.update(bar, raw=True)


def _state(timed: Timed) -> str:
    if not timed.total:
        return f"{timed.task}: {timed.done:,} done" if timed.done else timed.task
    left = _left(timed)
    return f"{timed.task}: {timed.done:,} of {timed.total:,} ({timed.done / timed.total:.0%}){left and f', {left}'}"


def _left(timed: Timed) -> str:
    return "" if timed.seconds_left is None else f"{duration_range(*timed.seconds_left)} left"


def print_error(line: str) -> None:
    """Print a line on stderr; a closed pipe is not an error."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


class _Terminal:
    """A stream that is discarded once its terminal has been closed: the work goes on without a display."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text."""
        with self._discarded():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the buffer."""
        with self._discarded():
            self._stream.flush()

    @contextlib.contextmanager
    def _discarded(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            discard(self._stream)


def is_closed(error: OSError) -> bool:
    """Whether an error of writing to stdout means that its reader is gone: a closed pipe, or a closed terminal."""
    if isinstance(error, BrokenPipeError):
        return True
    if error.errno != errno.EIO or error.filename is not None:
        return False
    try:
        return stat.S_ISCHR(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def discard(stream: TextIO) -> None:
    """Redirect a stream to the null device and discard its buffer."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def duration_range(low: float, high: float) -> str:
    """A rounded range of durations: ``about 40 s to 3 h 20 min``, or one duration if both ends are nearly equal."""
    if high <= 1.5 * low or high < 2:
        return duration(high)
    first, last = duration(low), duration(high)
    return first if first == last else f"{first} to {last.removeprefix('about ')}"


def duration(seconds: float) -> str:
    """A rounded duration: ``about 40 s``, ``about 12 min``, ``about 3 h 20 min``."""
    if seconds < 90:
        return f"about {math.ceil(seconds)} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 90 else f"about {minutes // 60} h {minutes % 60} min"
