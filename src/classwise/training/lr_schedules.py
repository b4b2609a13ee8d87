"""Learning-rate schedules, as functions of the fraction of training completed."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from typing import Annotated

import pydantic

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Count, NonNegative, Number, Share, configurable
from classwise.core.settings.description import Described


class LRSchedule(Described, ABC):
    """Base class of learning-rate schedules: a factor of the optimiser's learning rate."""

    @abstractmethod
    def factor(self, progress: float) -> float:
        """Return the factor at a fraction of training in [0, 1]."""


@configurable
class Constant(LRSchedule):
    """A constant learning rate."""

    source = ()
    example = "constant"

    def factor(self, progress: float) -> float:
        """Return 1."""
        return 1.0


@configurable
class MultiStep(LRSchedule):
    """Multiply the learning rate by gamma at each milestone.

    Args:
        milestones: fractions of training; epochs 100 and 150 of 200 are 0.5 and 0.75.
        gamma: the factor of each step.
    """

    source = ()
    example = "step:gamma=0.1"

    milestones: tuple[Share, ...] = (0.5, 0.75)
    gamma: NonNegative = 0.1

    def factor(self, progress: float) -> float:
        """Return gamma to the power of the number of milestones passed."""
        return self.gamma ** sum(progress >= milestone for milestone in self.milestones)


@configurable
class OneCycle(LRSchedule):
    """One-cycle schedule: linear from 0 to the peak rate and back to 0 (Smith and Topin, 2019; Rice et al., 2020).

    Args:
        peak: the fraction of training at which the rate is highest.
    """

    source = ("rice2020overfitting",)
    example = "one-cycle:peak=0.4"

    peak: Share = 0.4

    def factor(self, progress: float) -> float:
        """Return the factor of the triangle."""
        up = progress / self.peak if self.peak > 0 else 1.0
        down = (1 - progress) / (1 - self.peak) if self.peak < 1 else 1.0
        return min(up, down)


@configurable
class Cyclic(LRSchedule):
    """Cyclic schedule: triangles from ``low`` to 1 and back (Smith, WACV 2017).

    One cycle with peak = 0.5 is the schedule of fast AT (Wong, Rice and Kolter, ICLR 2020).

    Args:
        cycles: the number of triangles.
        peak: the fraction of a cycle at which the rate is highest.
        low: the factor at the ends of a cycle.
    """

    source = ("smith2017cyclical", "wong2020fast")
    example = "cyclic:cycles=1,peak=0.5"

    cycles: Count = 1
    peak: Annotated[Number, pydantic.Field(gt=0, lt=1)] = 0.5
    low: Share = 0.0

    def factor(self, progress: float) -> float:
        """Return the factor in the current cycle."""
        place = progress * self.cycles % 1
        height = min(place / self.peak, (1 - place) / (1 - self.peak))
        return self.low + (1 - self.low) * height


@configurable
class PiecewiseLinear(LRSchedule):
    """Piecewise-linear interpolation between points, constant before the first and after the last.

    The defaults are the three stages of fast AT on ImageNet (Wong, Rice and Kolter, ICLR 2020): in 15 epochs from 0 to
    0.4 in the first, 0.04 at the 6th, 0.004 at the 12th, 0.0004 at the end, as factors of 0.4.

    Args:
        points: pairs (fraction of training, factor), in increasing order of the fraction.
    """

    source = ("wong2020fast",)
    example = "three-stage"

    points: tuple[tuple[Share, NonNegative], ...] = (
        (0.0, 0.0),
        (1 / 15, 1.0),
        (6 / 15, 0.1),
        (12 / 15, 0.01),
        (1.0, 0.001),
    )

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.points]
        if not shares or any(later <= earlier for earlier, later in itertools.pairwise(shares)):
            raise ClasswiseError(f"lr_schedule points at {shares} must increase, as in [[0, 0], [0.5, 1], [1, 0]]")

    def factor(self, progress: float) -> float:
        """Return the interpolated factor."""
        before, low = self.points[0]
        for share, height in self.points:
            if progress < share:
                span = share - before
                return low if span == 0 else low + (height - low) * (progress - before) / span
            before, low = share, height
        return low


@configurable
class Cosine(LRSchedule):
    """Cosine annealing from the peak rate to 0 (Loshchilov and Hutter, ICLR 2017)."""

    source = ("loshchilov2017sgdr",)
    example = "cosine"

    def factor(self, progress: float) -> float:
        """Return the factor (1 + cos(pi progress)) / 2."""
        return (1 + math.cos(math.pi * progress)) / 2
