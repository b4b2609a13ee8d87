"""`estimate_training`: the passes and the seconds of a training run, from two timed steps."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from classwise.training.recipe import Recipe
from classwise.training.train import train


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

    Args:
        recipe: the recipe.
        device: the device to train on.

    Raises:
        ClasswiseError: see `classwise.train`.
    """
    watch = _Stopwatch()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_EnoughTimedError):
        train(recipe, out=Path(folder) / "run", device=device, progress=watch)
    seconds = (watch.times[-1] - watch.times[-3]) / 2 * watch.total if len(watch.times) > 2 else 0.0
    passes = watch.total * (recipe.parts.attack.length + 1) * recipe.batch_size
    return TrainingCost(watch.total, passes, seconds)


class _EnoughTimedError(Exception):
    """Raised once two steps are timed."""


class _Stopwatch:
    """A progress listener that stops training after a warm-up step and two timed steps."""

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
        if len(self.times) == 4:
            raise _EnoughTimedError

    def log(self, line: str) -> None:
        """Ignore log lines."""
