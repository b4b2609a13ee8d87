"""How long work tells that it goes on; who listens is up to the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


class Progress(Protocol):
    """A listener to long work."""

    def start(self, task: str, total: int) -> None:
        """A task of ``total`` units starts; it replaces the one before."""

    def advance(self, amount: int) -> None:
        """So many more units are done."""

    def log(self, line: str) -> None:
        """Something worth a line happened."""


@runtime_checkable
class Measured(Protocol):
    """A listener that wants numbers too; a training tells it what each epoch measured."""

    def measured(self, epoch: int, values: Mapping[str, float]) -> None:
        """The epoch (from 0) is done; names such as ``valid/robust/cat`` to what they were."""


class Silent:
    """Nobody listens."""

    def start(self, task: str, total: int) -> None:
        """Ignore it."""

    def advance(self, amount: int) -> None:
        """Ignore it."""

    def log(self, line: str) -> None:
        """Ignore it."""
