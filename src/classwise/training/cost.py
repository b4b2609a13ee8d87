"""`estimate_training`: the passes and the seconds of a training run, from a few timed steps."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from classwise.training.recipe import Recipe
from classwise.training.train import train

SLOW = 10.0
"""Seconds of timed steps after which no further step is timed."""


class TrainingCost(NamedTuple):
    """The cost of a training run, without the validation at the end of each epoch.

    Attributes:
        steps: number of steps.
        passes: forward and backward passes of one image, approximately.
        seconds: duration of the steps at the measured speed.
    """

    steps: int
    passes: int
    seconds: float


def estimate_training(recipe: Recipe, *, device: str = "cpu") -> TrainingCost:
    """Time two steps of a training run in a temporary folder, after a warm-up step.

    After a step that takes longer than `SLOW` seconds no other is timed: a slow warm-up step is the estimate.

    Args:
        recipe: the recipe.
        device: the device to train on.

    Raises:
        ClasswiseError: see `classwise.train`.
    """
    watch = _Stopwatch()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_EnoughTimedError):
        train(recipe, out=Path(folder) / "run", device=device, progress=watch)
    seconds = watch.step_seconds() * watch.total
    passes = watch.total * (recipe.parts.attack.length + 1) * recipe.batch_size
    return TrainingCost(watch.total, passes, seconds)


class _EnoughTimedError(Exception):
    """Raised once enough steps are timed."""


class _Stopwatch:
    """A progress listener that stops training after a warm-up step and two timed steps, or after `SLOW` seconds."""

    def __init__(self) -> None:
        self.total = 0
        self.times: list[float] = []

    def start(self, task: str, total: int) -> None:
        """Record the total number of steps."""
        del task
        self.total = total

    def advance(self, amount: int) -> None:
        """Record the end times of the start, the warm-up step and two more steps."""
        del amount
        self.times.append(time.monotonic())
        if len(self.times) == 4 or self.times[-1] - self.times[0] > SLOW:
            raise _EnoughTimedError

    def step_seconds(self) -> float:
        """The mean duration of a step, without the warm-up step where another was timed."""
        timed = self.times[1:] if len(self.times) > 2 else self.times
        return (timed[-1] - timed[0]) / (len(timed) - 1) if len(timed) > 1 else 0.0

    def log(self, line: str) -> None:
        """Ignore log lines."""
