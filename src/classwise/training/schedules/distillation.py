"""Schedules of fair distillation: Fair-ARD (Yue et al., NeurIPS 2023) and ABSLD (Zhao et al., NeurIPS 2024)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.core.settings.config import Count, NonNegative, Positive, configurable
from classwise.training.classes.signals import ClassSettings, Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State, latest
from classwise.training.schedules.class_weighting import BOTH, apply_class_weights

_TINY = 1e-5
"""Added to kappa, as in the public code of Fair-ARD."""


@configurable
class FairARD(ClassSchedule):
    """Class weights w_c = C kappa_c^-beta / sum_k kappa_k^-beta, clamped to [lowest, highest].

    kappa_c is the mean, over the training images of class c in the previous epoch, of the number of steps of the inner
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
        return {"kappa": latest(state["kappa"], signals["train.steps"])}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the weights of the epoch, (C,)."""
        return apply_class_weights(before, self.weights(state["kappa"]))

    def weights(self, kappa: Tensor) -> Tensor:
        """Compute the weights, (C,)."""
        known = ~kappa.isnan()
        powers = -self.beta * (kappa + _TINY).log()  # their softmax does not overflow
        weights = known.sum() * torch.where(known, powers, -torch.inf).softmax(0)
        return torch.where(known, weights.clamp(self.lowest, self.highest), 1.0)


@configurable
class ABSLD(ClassSchedule):
    """Temperatures T_c -= rate (R_c - mean R) / max_k |R_k - mean R|, clamped to [lowest, highest].

    R_c is the mean cross-entropy of the student on the training images of class c in the previous epoch. Clean and
    attacked images have temperatures of their own, initially 1. So a class with a larger error gets sharper soft
    labels. The temperatures of a class without images do not change.

    Args:
        rate: the largest change of a temperature in an epoch.
        drop_epochs: the epochs, from 1, from whose end on the rate is divided by 10.
        lowest: the smallest temperature.
        highest: the largest temperature.
    """

    source = ("zhao2024improving",)
    changes = ("temperature",)
    example = "absld:rate=0.1"

    rate: NonNegative = 0.1
    drop_epochs: tuple[Count, ...] = ()
    lowest: Positive = 0.5
    highest: Positive = 5.0

    reads = frozenset({"train.clean_error", "train.robust_error"})
    needs = frozenset({"clean_temperature", "robust_temperature"})

    def start(self, classes: Classes) -> State:
        """Return temperatures of 1."""
        return {term: torch.ones(len(classes), device=classes.device) for term in BOTH}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update the temperatures by the errors of the epoch."""
        rate = self.rate * 0.1 ** sum(epoch + 1 >= drop for drop in self.drop_epochs)
        return {term: self._updated(state[term], signals[f"train.{term}_error"].float(), rate) for term in BOTH}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the temperatures of the epoch, (C,) each."""
        return dataclasses.replace(before, **{f"{term}_temperature": state[term] for term in BOTH})

    def _updated(self, temperature: Tensor, error: Tensor, rate: float) -> Tensor:
        """Return the temperatures after an epoch with these errors, (C,)."""
        gap = (error - error.nanmean()).nan_to_num(nan=0.0)
        change = rate * gap / gap.abs().amax().clamp_min(torch.finfo(gap.dtype).tiny)
        return (temperature - change).clamp(self.lowest, self.highest)
