"""The base class of schedules that read the robust accuracy of each class on the training batches."""

from __future__ import annotations

import torch

from classwise.core.settings.config import configurable
from classwise.training.classes import Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State


@configurable
class RobustAccuracySchedule(ClassSchedule):
    """A schedule whose state is t, the robust accuracy of each class on the training batches of the last epoch.

    t is NaN in the first epoch, and for classes without a training image so far.
    """

    reads = frozenset({"train.robust"})

    def start(self, classes: Classes) -> State:
        """Return NaN for every class."""
        return {"t": torch.full((len(classes),), torch.nan, device=classes.device)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update t for the classes with images in the epoch."""
        del epoch
        robust = signals["train.robust"].float()
        return {"t": torch.where(robust.isnan(), state["t"], robust)}
