"""What schedules share that follow the robust accuracy of the training batches."""

from __future__ import annotations

import torch

from classwise.settings import settings
from classwise.training.classes import Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State


@settings
class RobustAccuracyFollower(ClassSchedule):
    """Keeps t, the robust accuracy of each class on the training batches of the last epoch.

    Before there is one, and for classes that no batch has held, t is NaN and the constants stand.
    """

    reads = frozenset({"train.robust"})

    def start(self, classes: Classes) -> State:
        """Nothing is known yet."""
        return {"t": torch.full((len(classes),), torch.nan, device=classes.device)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Take over the accuracy of the classes that were seen."""
        del epoch
        now = signals["train.robust"].float()
        return {"t": torch.where(now.isnan(), state["t"], now)}
