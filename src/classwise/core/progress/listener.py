"""Progress of long work: the interface of listeners that display, log or record it."""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable


class Progress(Protocol):
    """A listener to the progress of long work."""

    def start(self, task: str, total: int) -> None:
        """Start a task of ``total`` units (0: unknown, as of a stream); it replaces the current task."""

    def advance(self, amount: int) -> None:
        """Count ``amount`` more units as done."""

    def log(self, line: str) -> None:
        """Log a line."""


@runtime_checkable
class EstimatedProgress(Protocol):
    """A listener that also receives estimates of the time left of a task; without them it can extrapolate its units."""

    def expect(self, low: float, high: float) -> None:
        """Replace the estimate: the task takes another ``low`` to ``high`` seconds."""


def expect(progress: Progress, low: float, high: float) -> None:
    """Pass on an estimate of the seconds left of a task to a listener that receives them (`EstimatedProgress`)."""
    if isinstance(progress, EstimatedProgress):
        progress.expect(low, high)


class NullProgress:
    """A listener that ignores everything."""

    def start(self, task: str, total: int) -> None:
        """Do nothing."""

    def advance(self, amount: int) -> None:
        """Do nothing."""

    def log(self, line: str) -> None:
        """Do nothing."""


class Timed:
    """Units done of a task, and an estimate of the time that is left.

    Attributes:
        task: the current task.
        total: its units.
        done: units done.
    """

    def __init__(self) -> None:
        self.task, self.total, self.done = "", 0, 0
        self._first: tuple[float, int] | None = None
        self._expected: tuple[float, float, float] | None = None
        self._reported = 0.0

    def start(self, task: str, total: int) -> None:
        """Start a task."""
        self.task, self.total, self.done = task, total, 0
        self._first = self._expected = None
        self._reported = time.monotonic()

    def is_due(self, amount: int, interval: float) -> bool:
        """Count units as done; whether a report is due, one interval (s) after the last one."""
        self.done += amount
        now = time.monotonic()
        if self._first is None:
            self._first = (now, self.done)
        if now - self._reported < interval:
            return False
        self._reported = now
        return True

    def is_due_with(self, low: float, high: float, interval: float) -> bool:
        """Replace the estimate of the seconds left; whether a report is due, one interval (s) after the last one."""
        self._expected = (low, high, time.monotonic())
        due = self._expected[2] - self._reported >= interval
        self._reported = self._expected[2] if due else self._reported
        return due

    @property
    def seconds_left(self) -> tuple[float, float] | None:
        """The time left, at least and at most: the last estimate that was received, else extrapolated from the units.

        An estimate is used until its time is over. None before the second report of units, since the first may have
        been done before a resume, and if the number of units is unknown.
        """
        now = time.monotonic()
        if self._expected is not None:
            low, high, since = self._expected
            if now - since <= high:
                return max(low - (now - since), 0.0), high - (now - since)
        if not self.total or self._first is None or self.done == self._first[1]:
            return None
        since, before = self._first
        left = (self.total - self.done) * (now - since) / (self.done - before)
        return left, left
