"""Runs that end before their time."""

from __future__ import annotations

from classwise.core.progress import NullProgress


class Killed(BaseException):
    """Ends a run at once, as a signal would."""


class KillAt(NullProgress):
    """Kills the run after so many steps."""

    def __init__(self, step: int) -> None:
        self.left = step

    def advance(self, amount: int) -> None:
        self.left -= amount
        if self.left <= 0:
            raise Killed
