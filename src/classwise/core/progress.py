"""Progress of long work: the interfaces of listeners that display or log it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


class Progress(Protocol):
    """A listener to the progress of long work."""

    def start(self, task: str, total: int) -> None:
        """Start a task of ``total`` units; it replaces the current task."""

    def advance(self, amount: int) -> None:
        """Count ``amount`` more units as done."""

    def log(self, line: str) -> None:
        """Log a line."""


@runtime_checkable
class MetricsListener(Protocol):
    """A listener that also receives the metrics of each epoch of a training."""

    def log_metrics(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log the metrics of an epoch (counted from 0) by name, such as ``valid/robust/cat``."""


class NullProgress:
    """A listener that ignores everything."""

    def start(self, task: str, total: int) -> None:
        """Do nothing."""

    def advance(self, amount: int) -> None:
        """Do nothing."""

    def log(self, line: str) -> None:
        """Do nothing."""
