"""Fair-ARD (Yue et al., NeurIPS 2023): class weights by the number of attack steps that a class withstands."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.core.settings.config import NonNegative, Positive, configurable
from classwise.training.classes import ClassSettings, Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import apply_class_weights

_TINY = 1e-5
"""Added to kappa, as in the public code of Fair-ARD."""


@configurable
class FairARD(ClassSchedule):
    """Class weights w_c = C kappa_c^-beta / sum_k kappa_k^-beta, clamped to [lowest, highest].

    kappa_c is the mean, over the training images of class c in the last epoch, of the number of steps of the inner
    attack at whose start the image is classified correctly: the least number of steps that make it misclassified. The
    weights are 1 in the first epoch, and for a class without images. As the weights are clamped after they are
    normalised, their mean may differ from 1.

    Args:
        beta: the exponent; 0 gives weights of 1.
        lowest: the smallest weight.
        highest: the largest weight.
    """

    source = ("yue2023revisiting",)
    changes = ("weight",)
    example = "fair-ard:beta=2"

    beta: NonNegative = 2.0
    lowest: Positive = 5 / 6
    highest: Positive = 5 / 2

    reads = frozenset({"train.steps"})

    def start(self, classes: Classes) -> State:
        """Return NaN for every class."""
        return {"kappa": torch.full((len(classes),), torch.nan, device=classes.device)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update kappa for the classes with images in the epoch."""
        del epoch
        steps = signals["train.steps"].float()
        return {"kappa": torch.where(steps.isnan(), state["kappa"], steps)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the weights of the epoch, (C,)."""
        del epoch
        return apply_class_weights(before, self.weights(state["kappa"]))

    def weights(self, kappa: Tensor) -> Tensor:
        """Compute the weights, (C,)."""
        known = ~kappa.isnan()
        powers = -self.beta * (kappa + _TINY).log()  # their softmax does not overflow
        weights = known.sum() * torch.where(known, powers, -torch.inf).softmax(0)
        return torch.where(known, weights.clamp(self.lowest, self.highest), 1.0)
