"""`estimate_training`: the passes and the seconds of a training run, from a few timed steps or measured rates."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from classwise.core.compute.rates import Rates
from classwise.core.errors import ClasswiseError
from classwise.data import Images
from classwise.models import build_model
from classwise.training.recipe import Recipe
from classwise.training.setup import network_spec, steps_per_epoch, training_images
from classwise.training.train import train

SLOW = 10.0
"""Seconds of timed steps after which no further step is timed."""


class TrainingCost(NamedTuple):
    """The cost of a training run, without the validation at the end of each epoch.

    Attributes:
        steps: number of steps.
        passes: forward and backward passes of one image, with all parts of the recipe active.
        seconds: duration of the steps at the measured rate.
    """

    steps: int
    passes: int
    seconds: float


def estimate_training(
    recipe: Recipe, *, device: str = "cpu", rates: Rates | None = None, images: Images | None = None
) -> TrainingCost:
    """Time two steps of a training run in a temporary folder, after a warm-up step.

    After a step that takes longer than `SLOW` seconds no other is timed: a slow warm-up step is the estimate.

    Args:
        recipe: the recipe.
        device: the device to train on.
        rates: measured rates of a device (`classwise.core.compute.rates.RATES`), for the seconds on it; None: steps are
            timed. The passes of a step are those of `classwise.training.recipe.Parts.passes`.
        images: the training images of the recipe; None: they are loaded.

    Raises:
        ClasswiseError: see `classwise.train`; with rates, if the recipe does not train in bfloat16 on a GPU.
    """
    check_rates(recipe, rates)
    if rates is None:
        watch = _Stopwatch()
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_EnoughTimedError):
            given = None if isinstance(recipe.data.validation, str) else images
            train(recipe, data=given, out=Path(folder) / "run", device=device, progress=watch)
        steps, step = watch.total, watch.step_seconds()
    else:
        images = training_images(recipe.data) if images is None else images
        steps = recipe.epochs * steps_per_epoch(recipe, images)
        clock = rates.clock(build_model(**network_spec(recipe, images)).eval(), images.pixels(slice(0, 1)))
        step = clock("training", recipe.batch_size * recipe.parts.passes.equivalents, lambda: None)
    passes = steps * recipe.parts.passes.total * recipe.batch_size
    return TrainingCost(steps, passes, step * steps)


def check_rates(recipe: Recipe, rates: Rates | None) -> None:
    """Check that rates, if given, are those of the recipe's dtype.

    Raises:
        ClasswiseError: with rates, if the recipe does not train in bfloat16 on a GPU.
    """
    if rates is not None and recipe.precision.dtype not in ("auto", "bfloat16"):
        raise ClasswiseError(
            f"precision.dtype = {recipe.precision.dtype!r}: the rates are those of training in bfloat16; set it to auto"
        )


class _EnoughTimedError(Exception):
    """Raised once enough steps are timed."""


class _Stopwatch:
    """A progress listener that stops training after a warm-up step and two timed steps, or after `SLOW` seconds."""

    def __init__(self) -> None:
        self.total = 0
        self.times: list[float] = []

    def start(self, task: str, total: int) -> None:
        """Record the total number of steps."""
        self.total = total

    def advance(self, amount: int) -> None:
        """Record the end times of the start, the warm-up step and two more steps."""
        self.times.append(time.monotonic())
        if len(self.times) == 4 or self.times[-1] - self.times[0] > SLOW:
            raise _EnoughTimedError

    def step_seconds(self) -> float:
        """The mean duration of a step, without the warm-up step where another was timed."""
        timed = self.times[1:] if len(self.times) > 2 else self.times
        return (timed[-1] - timed[0]) / (len(timed) - 1) if len(timed) > 1 else 0.0

    def log(self, line: str) -> None:
        """Ignore log lines."""
