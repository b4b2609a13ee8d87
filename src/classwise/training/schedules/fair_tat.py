"""FAIR-TAT (Medi et al., 2024): attacks aim at the classes that take the most images of others."""

from __future__ import annotations

import dataclasses

import torch

from classwise.core.config import Positive, configurable
from classwise.training.classes import ClassSettings, Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State


@configurable
class FairTAT(ClassSchedule):
    """Targets are drawn among the other classes in proportion to their false positives of the last epoch.

    The false positives of a class are the images of other classes that were taken for it, on the training batches
    under attack. In the first epoch all other classes are alike.

    Args:
        smoothing: images that every class is given beside its count, so that none is left out.
    """

    source = ("medi2025fairtat",)
    changes = ("target",)
    example = "fair-tat:smoothing=1"

    smoothing: Positive = 1.0

    reads = frozenset({"train.confusion"})

    def start(self, classes: Classes) -> State:
        """No false positives yet."""
        return {"taken": torch.zeros(len(classes), device=classes.device)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """The epoch's counts replace those of the one before."""
        del state, epoch
        confusion = signals["train.confusion"]
        return {"taken": confusion.sum(0) - confusion.diagonal()}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The law of targets of this epoch, (C, C)."""
        del epoch
        odds = (state["taken"] + self.smoothing).expand(len(state["taken"]), -1).clone()
        odds.fill_diagonal_(0)
        return dataclasses.replace(before, target=odds / odds.sum(1, keepdim=True).clamp_min(1e-12))
