"""ABSLD (Zhao et al., NeurIPS 2024): a temperature of the teacher's soft labels for each class."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.core.settings.config import Count, NonNegative, Positive, configurable
from classwise.training.classes import ClassSettings, Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State

TERMS = ("clean", "robust")


@configurable
class ABSLD(ClassSchedule):
    """Temperatures T_c -= rate (R_c - mean R) / max_k |R_k - mean R|, clamped to [lowest, highest].

    R_c is the mean cross-entropy of the student on the training images of class c in the last epoch. Clean and attacked
    images have temperatures of their own, initially 1. So a class with a larger error gets sharper soft labels. The
    temperatures of a class without images do not change.

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
    needs_temperature = True

    def start(self, classes: Classes) -> State:
        """Return temperatures of 1."""
        return {term: torch.ones(len(classes), device=classes.device) for term in TERMS}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update the temperatures by the errors of the epoch."""
        rate = self.rate * 0.1 ** sum(epoch + 1 >= drop for drop in self.drop_epochs)
        return {term: self._updated(state[term], signals[f"train.{term}_error"].float(), rate) for term in TERMS}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the temperatures of the epoch, (C,) each."""
        del epoch
        return dataclasses.replace(before, **{f"{term}_temperature": state[term] for term in TERMS})

    def _updated(self, temperature: Tensor, error: Tensor, rate: float) -> Tensor:
        """Return the temperatures after an epoch with these errors, (C,)."""
        gap = (error - error.nanmean()).nan_to_num(nan=0.0)
        change = rate * gap / gap.abs().amax().clamp_min(torch.finfo(gap.dtype).tiny)
        return (temperature - change).clamp(self.lowest, self.highest)
