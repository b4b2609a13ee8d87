"""CFA's two calibrations (Wei et al., CVPR 2023): margins by class (CCM), regularisation by class (CCR)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.core.config import NonNegative, configurable
from classwise.training.classes import ClassSettings
from classwise.training.schedules.base import State
from classwise.training.schedules.class_weighting import apply_class_weights
from classwise.training.schedules.robust_accuracy import RobustAccuracySchedule


@configurable
class _Calibration(RobustAccuracySchedule):
    """A constant that is scaled by lambda + t from an epoch on."""

    start_epoch: int = 0

    def _scaled(self, constant: Tensor, offset: float, state: State, epoch: int) -> Tensor:
        """(offset + t) times the constant from the epoch ``begin`` on, the constant where t is not known."""
        if epoch < self.start_epoch:
            return constant
        return torch.where(state["t"].isnan(), constant, (offset + state["t"]) * constant)


@configurable
class CCM(_Calibration):
    """Class-wise calibrated margin, eq. 6: eps_k = (lambda1 + t_k) eps.

    Args:
        lambda1: 0.5 for AT, 0.3 for TRADES, 0.7 for FAT in the paper.
        start_epoch: the epoch (from 0) from which it acts; the public code waits for 10.
    """

    source = ("wei2023cfa, eq. 6",)
    changes = ("radius",)
    example = "ccm:lambda1=0.5"

    lambda1: NonNegative = 0.5

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The radii of this epoch."""
        assert before.epsilon is not None
        return dataclasses.replace(before, epsilon=self._scaled(before.epsilon, self.lambda1, state, epoch))


@configurable
class CCR(_Calibration):
    """Class-wise calibrated regularisation, eq. 7 and 8.

    beta_k = (lambda2 + t_k) beta, and both terms of a class-k image are divided by 1 + beta_k.

    Args:
        lambda2: 0.5 in the paper.
        start_epoch: the epoch (from 0) from which it acts; the division holds from the first epoch.
    """

    source = ("wei2023cfa, eq. 7 and 8",)
    changes = ("weight", "beta")
    example = "ccr:lambda2=0.5"

    lambda2: NonNegative = 0.5

    needs_beta = True

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The betas and weights of this epoch."""
        assert before.beta is not None
        beta = self._scaled(before.beta, self.lambda2, state, epoch)
        return apply_class_weights(dataclasses.replace(before, beta=beta), 1 / (1 + beta))
