"""Progress of long work: the interface of listeners that display, log or record it."""

from __future__ import annotations

import time
from typing import Protocol


class Progress(Protocol):
    """A listener to the progress of long work."""

    def start(self, task: str, total: int) -> None:
        """Start a task of ``total`` units (0: unknown, as of a stream); it replaces the current task."""

    def advance(self, amount: int) -> None:
        """Count ``amount`` more units as done."""

    def log(self, line: str) -> None:
        """Log a line."""


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
        self._reported = 0.0

    def start(self, task: str, total: int) -> None:
        """Start a task."""
        self.task, self.total, self.done, self._first = task, total, 0, None
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

    @property
    def seconds_left(self) -> float | None:
        """Estimated time left; None before the second report of units: the first may have been done before a resume.

        None also if the number of units is unknown.
        """
        if not self.total or self._first is None or self.done == self._first[1]:
            return None
        since, before = self._first
        return (self.total - self.done) * (time.monotonic() - since) / (self.done - before)
