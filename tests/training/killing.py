"""Interrupted runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from classwise.core.progress.listener import NullProgress
from classwise.training.folder import Run


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


def killed_and_resumed(train: Callable[..., Run], *arguments: Any, step: int, **options: Any) -> Run:
    """The run of a training that is killed after a number of steps and resumed."""
    with pytest.raises(Killed):
        train(*arguments, progress=KillAt(step), **options)
    return train(*arguments, resume=True, **options)
