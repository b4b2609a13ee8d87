"""The contract of a class schedule: the one place where fairness lives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from classwise.training.classes import ClassSettings, Signals
from classwise.training.objectives.base import Step, TrainingBatch

State = dict[str, Tensor]


@dataclass(frozen=True)
class Classes:
    """What a schedule knows of the classes when it starts.

    Args:
        names: class names, C of them.
        counts: training images of each class, int64 (C,).
    """

    names: tuple[str, ...]
    counts: Tensor

    def __len__(self) -> int:
        return len(self.names)

    @property
    def device(self) -> torch.device:
        """Where the schedule's tensors belong."""
        return self.counts.device


class ClassSchedule(ABC):
    """Reads per-class signals, returns per-class settings. Subclasses are frozen dataclasses.

    Schedules compose in list order: each folds its changes over the settings that it is given.
    """

    #: The signals (`classwise.training.classes.MEASURED`) that the loop must collect for it.
    reads: ClassVar[frozenset[str]] = frozenset()
    #: Whether it changes beta, so that the objective must have one.
    needs_beta: ClassVar[bool] = False
    #: Whether it sets logit margins, so that the objective must take them.
    needs_margin: ClassVar[bool] = False
    #: Whether its source starts from a robust model; a run from random weights is then told so.
    fine_tunes: ClassVar[bool] = False

    @abstractmethod
    def start(self, classes: Classes) -> State:
        """The state before the first epoch."""

    def after_batch(self, state: State, step: Step, batch: TrainingBatch) -> State:
        """The state after a step; on the device, without waiting for it."""
        del step, batch
        return state

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """The state after an epoch (counted from 0), given what the epoch measured."""
        del signals, epoch
        return state

    @abstractmethod
    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The settings for an epoch (counted from 0), folded over those of the schedules before it."""
