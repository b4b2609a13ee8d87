"""The progress of a training or an audit, in a file of its folder while it runs.

The file is small and replaced in place: a reader ignores a partial one. It has no checksum, and an error of writing it
is ignored, since nothing is computed from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import pydantic

from classwise.core.errors import ClasswiseError
from classwise.core.files.json_values import json_text
from classwise.core.files.ownership import check
from classwise.core.files.reading import check_regular, fitting, parse_json, read_bytes
from classwise.core.progress.listener import Progress, Timed, expect

FILE = "progress.json"
SECONDS_BETWEEN_RECORDS = 10.0


@dataclass(frozen=True)
class ProgressRecord:
    """The recorded progress.

    Attributes:
        task: what is running, such as ``training``.
        done: units done.
        total: all units of the task.
        seconds_left: estimated time left of the task, at most; None if unknown.
        seconds_left_low: the same, at least.
    """

    task: str
    done: Annotated[int, pydantic.Field(ge=0)]
    total: Annotated[int, pydantic.Field(ge=0)]
    seconds_left: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] | None
    seconds_left_low: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] | None = None


@contextmanager
def recorded(folder: Path | None, progress: Progress) -> Iterator[Progress]:
    """A listener that forwards to another one, and records the progress in a folder until the end of the block.

    Args:
        folder: a folder that this process owns; None: nothing is recorded.
        progress: the listener to forward to.

    Example:
        >>> import tempfile
        >>> from classwise.core.progress.listener import NullProgress
        >>> with tempfile.TemporaryDirectory() as name:
        ...     with recorded(Path(name), NullProgress()) as progress:
        ...         progress.start("training", 400)
        ...         progress.advance(100)
        ...         read_progress(Path(name))
        ...     read_progress(Path(name))
        ProgressRecord(task='training', done=100, total=400, seconds_left=None, seconds_left_low=None)
    """
    if folder is None:
        yield progress
        return
    try:
        yield _Recorder(folder / FILE, progress)
    finally:
        with contextlib.suppress(ClasswiseError, OSError):
            check(folder / FILE)
            (folder / FILE).unlink(missing_ok=True)


def read_progress(folder: Path) -> ProgressRecord | None:
    """Read the progress in a folder; None if nothing is recorded, the file is being written, or it is damaged."""
    path = folder / FILE
    try:
        return fitting(ProgressRecord, parse_json(read_bytes(path)), str(path))
    except ValueError:
        return None


class _Recorder(Timed):
    """Records the start of a task, its first units, and its progress at intervals."""

    def __init__(self, file: Path, listener: Progress) -> None:
        super().__init__()
        self._file, self._listener = file, listener

    def start(self, task: str, total: int) -> None:
        """Record the start, and forward it."""
        super().start(task, total)
        self._write()
        self._listener.start(task, total)

    def advance(self, amount: int) -> None:
        """Record the progress if a record is due, and forward it."""
        is_first = self._first is None
        if self.is_due(amount, SECONDS_BETWEEN_RECORDS) or is_first:
            self._write()
        self._listener.advance(amount)

    def expect(self, low: float, high: float) -> None:
        """Record the progress if a record is due, and forward the estimate."""
        if self.is_due_with(low, high, SECONDS_BETWEEN_RECORDS):
            self._write()
        expect(self._listener, low, high)

    def log(self, line: str) -> None:
        """Forward a line."""
        self._listener.log(line)

    def _write(self) -> None:
        low, high = self.seconds_left or (None, None)
        record = ProgressRecord(self.task, self.done, self.total, high, low)
        with contextlib.suppress(ClasswiseError, OSError):
            check(self._file)
            check_regular(self._file)
            self._file.write_text(json_text(asdict(record)) + "\n", encoding="utf-8")
