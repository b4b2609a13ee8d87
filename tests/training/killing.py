"""Interrupted runs."""

from __future__ import annotations

from classwise.core.progress.listener import NullProgress


class Killed(BaseException):
    """Raised to end a run immediately, like a signal."""


class KillAt(NullProgress):
    """Kill the run after a number of steps."""

    def __init__(self, step: int) -> None:
        self.left = step

    def advance(self, amount: int) -> None:
        self.left -= amount
        if self.left <= 0:
            raise Killed
