"""CFA's calibrations (Wei et al., CVPR 2023): class-wise margin (CCM) and class-wise regularisation (CCR).

With radii in either direction at a constant mean radius (ours).
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import pydantic
import torch
from torch import Tensor

from classwise.core.settings import limits
from classwise.core.settings.config import Integer, NonNegative, Number, Share, configurable
from classwise.training.classes.signals import ClassSettings, Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State, latest
from classwise.training.schedules.class_weighting import apply_class_weights


@configurable
class _RobustAccuracySchedule(ClassSchedule):
    """A schedule whose state is t, the robust accuracy of each class on the training batches of the previous epoch.

    t is NaN in the first epoch, and for classes without a training image so far.
    """

    reads = frozenset({"train.robust"})

    def start(self, classes: Classes) -> State:
        """Return NaN for every class."""
        return {"t": torch.full((len(classes),), torch.nan, device=classes.device)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update t for the classes with images in the epoch."""
        return {"t": latest(state["t"], signals["train.robust"])}


@configurable
class _Calibration(_RobustAccuracySchedule):
    """A constant multiplied by lambda + t from ``start_epoch`` on."""

    start_epoch: Annotated[Integer, pydantic.Field(ge=0, le=limits.COUNT)] = 0

    def _scaled(self, constant: Tensor, shift: float, state: State, epoch: int) -> Tensor:
        """Compute (shift + t) constant from ``start_epoch`` on, (C,); the constant where t is NaN."""
        if epoch < self.start_epoch:
            return constant
        return torch.where(state["t"].isnan(), constant, (shift + state["t"]) * constant)


@configurable
class CCM(_Calibration):
    """CCM: eps_k = (lambda1 + t_k) eps (eq. 6), t_k the robust accuracy on the previous epoch's training batches.

    In the first epoch, and for a class without a training image so far, the radius is eps. A step size relative to the
    radius of each image (``0.25eps``) is scaled with it; one relative to the radius of the recipe (``0.25base_eps``, as
    in the recipes of CFA) and an absolute one are not.

    Args:
        lambda1: the paper's lambda_1: 0.5 for AT, 0.3 for TRADES, 0.7 for FAT.
        start_epoch: the first epoch (from 0) with calibrated radii; 10 in the public code.
    """

    source = ("wei2023cfa, eq. 6",)
    changes = ("radius",)
    example = "ccm:lambda1=0.5"

    lambda1: NonNegative = 0.5

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the radii of the epoch."""
        assert before.epsilon is not None
        return dataclasses.replace(before, epsilon=self._scaled(before.epsilon, self.lambda1, state, epoch))


@configurable
class CCR(_Calibration):
    """CCR: beta_k = (lambda2 + t_k) beta (eq. 7, 8), t_k the robust accuracy on the previous epoch's training batches.

    Both terms of the loss of a class-k image are divided by 1 + beta_k.

    Args:
        lambda2: the paper's lambda_2, 0.5.
        start_epoch: the first epoch (from 0) with calibrated betas; the division applies from the first epoch.
    """

    source = ("wei2023cfa, eq. 7 and 8",)
    changes = ("weight", "beta")
    example = "ccr:lambda2=0.5"

    lambda2: NonNegative = 0.5

    needs = frozenset({"beta"})
    divides_by_beta = True

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the betas and weights of the epoch."""
        assert before.beta is not None
        beta = self._scaled(before.beta, self.lambda2, state, epoch)
        return apply_class_weights(dataclasses.replace(before, beta=beta), 1 / (1 + beta))


@configurable
class Margins(_RobustAccuracySchedule):
    """Radii eps_k = eps (1 + slope (t_k - mean t)), t the robust accuracy on the previous epoch's training batches.

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
        assert before.epsilon is not None
        above = (state["t"] - state["t"].nanmean()).nan_to_num(0.0)
        factors = (1 + self.slope * above).clamp_min(self.floor)
        return dataclasses.replace(before, epsilon=before.epsilon * factors)
