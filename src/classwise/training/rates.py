"""Learning-rate schedules: functions of the share of training that is done, so that they shorten with the epochs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from classwise.settings import NonNegative, Share, settings


class Rate(ABC):
    """A factor for the optimiser's learning rate."""

    @abstractmethod
    def factor(self, progress: float) -> float:
        """The factor at a share of training in [0, 1]."""


@settings
class Constant(Rate):
    """One rate throughout."""

    def factor(self, progress: float) -> float:
        """1."""
        del progress
        return 1.0


@settings
class Step(Rate):
    """A drop at each milestone.

    Args:
        milestones: shares of training; the papers' epochs 100 and 150 of 200 are 0.5 and 0.75.
        gamma: the factor of each drop.
    """

    milestones: tuple[Share, ...] = (0.5, 0.75)
    gamma: NonNegative = 0.1

    def factor(self, progress: float) -> float:
        """Gamma to the number of milestones passed."""
        return self.gamma ** sum(progress >= milestone for milestone in self.milestones)


@settings
class OneCycle(Rate):
    """Up from 0 to the full rate and down to 0 again, linearly (Smith and Topin 2019; Rice et al. 2020).

    Args:
        peak: the share of training at which the rate is highest.
    """

    peak: Share = 0.4

    def factor(self, progress: float) -> float:
        """The triangle's height."""
        up = progress / self.peak if self.peak > 0 else 1.0
        down = (1 - progress) / (1 - self.peak) if self.peak < 1 else 1.0
        return min(up, down)


@settings
class Cosine(Rate):
    """Half a cosine from the full rate to 0 (Loshchilov and Hutter, ICLR 2017)."""

    def factor(self, progress: float) -> float:
        """The cosine's height."""
        return (1 + math.cos(math.pi * progress)) / 2
