"""Radii by robust accuracy at a constant mean radius: hard classes a smaller radius, or a larger one (ours)."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from classwise.core.config import Number, Share, configurable
from classwise.training.classes import ClassSettings
from classwise.training.schedules.base import State
from classwise.training.schedules.robust_accuracy import RobustAccuracySchedule


@configurable
class Margins(RobustAccuracySchedule):
    """eps_k = eps (1 + slope (t_k - mean t)), t the robust accuracy on the last epoch's training batches.

    CFA gives hard classes a smaller radius; FRL, DAFA and TRIX give them a larger one. The sign of the slope alone
    decides here: the mean radius is eps under either, unless a radius falls below the floor. The step follows an attack
    whose step is relative to the radius. In the first epoch, and for classes without a training image so far,
    the constant applies; the mean is over the classes with a t.

    Args:
        slope: how much of its radius a class gains for each unit of accuracy above the mean: 1 is CFA's slope, -1 its
            mirror image.
        floor: the smallest radius, as a share of eps.
    """

    source = ("wei2023cfa, eq. 6",)
    changes = ("radius",)
    example = "margins:slope=1"

    slope: Number = 1.0
    floor: Share = 0.1

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The radii of this epoch."""
        del epoch
        assert before.epsilon is not None
        return dataclasses.replace(before, epsilon=before.epsilon * self._factors(state["t"]))

    def _factors(self, t: Tensor) -> Tensor:
        above = (t - t.nanmean()).nan_to_num(0.0)
        return (1 + self.slope * above).clamp_min(self.floor)
