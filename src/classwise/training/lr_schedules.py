"""Learning-rate schedules: functions of the share of training that is done, so that they shorten with the epochs."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from typing import Annotated

import pydantic

from classwise.core.config import Count, NonNegative, Number, Share, configurable
from classwise.core.description import Described
from classwise.core.errors import ClasswiseError


class LRSchedule(Described, ABC):
    """A factor for the optimiser's learning rate."""

    @abstractmethod
    def factor(self, progress: float) -> float:
        """The factor at a share of training in [0, 1]."""


@configurable
class Constant(LRSchedule):
    """One rate throughout."""

    source = ()
    example = "constant"

    def factor(self, progress: float) -> float:
        """1."""
        del progress
        return 1.0


@configurable
class MultiStep(LRSchedule):
    """A drop at each milestone.

    Args:
        milestones: shares of training; the papers' epochs 100 and 150 of 200 are 0.5 and 0.75.
        gamma: the factor of each drop.
    """

    source = ()
    example = "step:gamma=0.1"

    milestones: tuple[Share, ...] = (0.5, 0.75)
    gamma: NonNegative = 0.1

    def factor(self, progress: float) -> float:
        """Gamma to the number of milestones passed."""
        return self.gamma ** sum(progress >= milestone for milestone in self.milestones)


@configurable
class OneCycle(LRSchedule):
    """Up from 0 to the full rate and down to 0 again, linearly (Smith and Topin 2019; Rice et al. 2020).

    Args:
        peak: the share of training at which the rate is highest.
    """

    source = ("rice2020overfitting",)
    example = "one-cycle:peak=0.4"

    peak: Share = 0.4

    def factor(self, progress: float) -> float:
        """The triangle's height."""
        up = progress / self.peak if self.peak > 0 else 1.0
        down = (1 - progress) / (1 - self.peak) if self.peak < 1 else 1.0
        return min(up, down)


@configurable
class Cyclic(LRSchedule):
    """Triangles in a row, each from ``low`` up to the full rate and down to ``low`` again (Smith, WACV 2017).

    One triangle with its peak in the middle is the cyclic schedule of fast AT (Wong, Rice and Kolter, ICLR 2020).

    Args:
        cycles: how many triangles.
        peak: where in its triangle the rate is highest, as a share of it.
        low: the factor at a triangle's ends.
    """

    source = ("smith2017cyclical", "wong2020fast")
    example = "cyclic:cycles=1,peak=0.5"

    cycles: Count = 1
    peak: Annotated[Number, pydantic.Field(gt=0, lt=1)] = 0.5
    low: Share = 0.0

    def factor(self, progress: float) -> float:
        """The height in the triangle that is being passed."""
        place = progress * self.cycles % 1
        height = min(place / self.peak, (1 - place) / (1 - self.peak))
        return self.low + (1 - self.low) * height


@configurable
class PiecewiseLinear(LRSchedule):
    """Straight lines between points; level before the first and after the last.

    The defaults are fast AT's three stages on ImageNet (Wong, Rice and Kolter, ICLR 2020): in 15 epochs 0 to
    0.4 in the first, 0.04 at the 6th, 0.004 at the 12th, 0.0004 at the end, as factors of 0.4.

    Args:
        points: (share of training, factor) pairs, the shares rising.
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
            raise ClasswiseError(f"rate points at shares {shares} should rise, as in [[0, 0], [0.5, 1], [1, 0]]")

    def factor(self, progress: float) -> float:
        """The line's height."""
        before, low = self.points[0]
        for share, height in self.points:
            if progress < share:
                span = share - before
                return low if span == 0 else low + (height - low) * (progress - before) / span
            before, low = share, height
        return low


@configurable
class Cosine(LRSchedule):
    """Half a cosine from the full rate to 0 (Loshchilov and Hutter, ICLR 2017)."""

    source = ("loshchilov2017sgdr",)
    example = "cosine"

    def factor(self, progress: float) -> float:
        """The cosine's height."""
        return (1 + math.cos(math.pi * progress)) / 2
