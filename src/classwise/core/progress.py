"""Progress of long work: the interface of listeners that display or log it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A listener to the progress of long work."""

    def start(self, task: str, total: int) -> None:
        """Start a task of ``total`` units; it replaces the current task."""

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
