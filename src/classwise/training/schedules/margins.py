"""Class-wise radii at a constant mean radius: smaller or larger for hard classes (ours)."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from classwise.core.settings.config import Number, Share, configurable
from classwise.training.classes import ClassSettings
from classwise.training.schedules.base import State
from classwise.training.schedules.robust_accuracy import RobustAccuracySchedule


@configurable
class Margins(RobustAccuracySchedule):
    """Radii eps_k = eps (1 + slope (t_k - mean t)), t the robust accuracy on the last epoch's training batches.

    Ours, to compare the direction of CFA (smaller radii for hard classes) with that of FRL, DAFA and TRIX (larger).
    Only the sign of the slope differs: the mean radius is eps for both, unless a radius is clamped at ``floor``. A step
    size relative to the radius is scaled with it. The radius is eps in the first epoch, and for a class without a
    training image so far; such classes do not enter the mean.

    Args:
        slope: relative change of the radius per unit of accuracy above the mean; 1 is CFA's slope.
        floor: the smallest radius, as a fraction of eps.
    """

    source = ("wei2023cfa, eq. 6",)
    changes = ("radius",)
    example = "margins:slope=1"

    slope: Number = 1.0
    floor: Share = 0.1

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the radii of the epoch."""
        del epoch
        assert before.epsilon is not None
        return dataclasses.replace(before, epsilon=before.epsilon * self._factors(state["t"]))

    def _factors(self, t: Tensor) -> Tensor:
        above = (t - t.nanmean()).nan_to_num(0.0)
        return (1 + self.slope * above).clamp_min(self.floor)
