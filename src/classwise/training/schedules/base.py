"""The interface of class schedules: per-class signals in, per-class settings out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from classwise.core.description import Described
from classwise.core.errors import ClasswiseError, unknown
from classwise.training.classes import ClassSettings, Signals, Term
from classwise.training.objectives.base import Step, TrainingBatch

State = dict[str, Tensor]


@dataclass(frozen=True)
class Classes:
    """The classes of the training split.

    Args:
        names: class names, C of them.
        counts: training images of each class, int64 (C,).
    """

    names: tuple[str, ...]
    counts: Tensor

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str) -> int:
        """The number of a class, given its name or its number as text.

        Raises:
            ClasswiseError: if there is no such class, or it has no training image.
        """
        if name in self.names:
            number = self.names.index(name)
        elif name.isdigit() and int(name) < len(self):
            number = int(name)
        else:
            raise unknown("class", name, self.names)
        if not int(self.counts[number]):
            raise ClasswiseError(f"class {name!r} has no training image; name another")
        return number

    @property
    def device(self) -> torch.device:
        """Where the schedule's tensors belong."""
        return self.counts.device


class ClassSchedule(Described, ABC):
    """Reads per-class signals, returns per-class settings. Subclasses are frozen dataclasses.

    Schedules compose in list order: each folds its changes over the settings that it is given.
    """

    #: The signals (`classwise.training.classes.MEASURED`) that the loop must collect for it.
    reads: ClassVar[frozenset[str]] = frozenset()
    #: Whether it changes beta, so that the objective must have one.
    needs_beta: ClassVar[bool] = False
    #: Whether it sets the scale of the logits, which only one schedule of a recipe can.
    sets_scale: ClassVar[bool] = False
    #: Whether its source starts from a robust model; for a run from random weights a note is then logged.
    fine_tunes: ClassVar[bool] = False

    @property
    def weighs(self) -> frozenset[Term]:
        """The terms whose weights it sets, of which the objective must have one; none if it sets no weights."""
        return frozenset()

    @abstractmethod
    def start(self, classes: Classes) -> State:
        """The state before the first epoch."""

    def before_training(self, state: State, outputs: Callable[[], Tensor]) -> State:
        """The state before the first epoch, given the outputs of the untrained network.

        Args:
            state: the state of `start`.
            outputs: makes one pass: the network's outputs on the clean training images, (N, C), in evaluation mode.
        """
        del outputs
        return state

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
