"""CFA's calibrations (Wei et al., CVPR 2023): class-wise margin (CCM) and class-wise regularisation (CCR)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.core.settings.config import NonNegative, configurable
from classwise.training.classes import ClassSettings
from classwise.training.schedules.base import State
from classwise.training.schedules.class_weighting import apply_class_weights
from classwise.training.schedules.robust_accuracy import RobustAccuracySchedule


@configurable
class _Calibration(RobustAccuracySchedule):
    """A constant multiplied by lambda + t from ``start_epoch`` on."""

    start_epoch: int = 0

    def _scaled(self, constant: Tensor, shift: float, state: State, epoch: int) -> Tensor:
        """Compute (shift + t) constant from ``start_epoch`` on, (C,); the constant where t is NaN."""
        if epoch < self.start_epoch:
            return constant
        return torch.where(state["t"].isnan(), constant, (shift + state["t"]) * constant)


@configurable
class CCM(_Calibration):
    """Class-wise calibrated margin, eq. 6: eps_k = (lambda1 + t_k) eps.

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
    """Class-wise calibrated regularisation, eq. 7 and 8: beta_k = (lambda2 + t_k) beta.

    Both terms of the loss of a class-k image are divided by 1 + beta_k.

    Args:
        lambda2: the paper's lambda_2, 0.5.
        start_epoch: the first epoch (from 0) with calibrated betas; the division applies from the first epoch.
    """

    source = ("wei2023cfa, eq. 7 and 8",)
    changes = ("weight", "beta")
    example = "ccr:lambda2=0.5"

    lambda2: NonNegative = 0.5

    needs_beta = True
    divides_by_beta = True

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the betas and weights of the epoch."""
        assert before.beta is not None
        beta = self._scaled(before.beta, self.lambda2, state, epoch)
        return apply_class_weights(dataclasses.replace(before, beta=beta), 1 / (1 + beta))
