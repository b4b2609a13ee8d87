"""The interface of class schedules, which map per-class signals to per-class settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.description import Described
from classwise.training.classes.signals import ClassSettings, Signals, Term
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
        """Return the label of a class, given its name or its label as text.

        Raises:
            ClasswiseError: if the class does not exist or has no training image.
        """
        if name in self.names:
            number = self.names.index(name)
        elif name.isdigit() and int(name) < len(self):
            number = int(name)
        else:
            raise unknown("class", name, self.names)
        if not int(self.counts[number]):
            raise ClasswiseError(f"class {name!r} has no training image; choose another class")
        return number

    @property
    def device(self) -> torch.device:
        """The device of the schedule's tensors."""
        return self.counts.device


class ClassSchedule(Described, ABC):
    """Base class of class schedules: per-class settings as a function of per-class signals.

    Subclasses are frozen dataclasses. Schedules are applied in list order; each modifies the settings of the previous
    one.
    """

    #: The names of the signals that it reads, with some settings.
    reads: ClassVar[frozenset[str]] = frozenset()
    #: The class settings that the objective must use, such as ``beta``; ``epsilon`` for an inner attack.
    needs: ClassVar[frozenset[str]] = frozenset()
    #: Whether it divides the loss by 1 + beta, which the objective must then not do.
    divides_by_beta: ClassVar[bool] = False
    #: Whether it sets the scale of the logits; at most one schedule of a recipe may.
    sets_scale: ClassVar[bool] = False
    #: Whether the paper starts from a robust model; a note is logged for a run from random weights.
    fine_tunes: ClassVar[bool] = False

    @property
    def signals(self) -> frozenset[str]:
        """The signals that the trainer must measure: `reads`, or those that its settings need."""
        return self.reads

    @property
    def weighted_terms(self) -> frozenset[Term]:
        """The terms whose weights it sets (default: the field ``terms``, or none); the objective must have one."""
        return frozenset(getattr(self, "terms", ()))

    @abstractmethod
    def start(self, classes: Classes) -> State:
        """Return the state before the first epoch."""

    def before_training(self, state: State, outputs: Callable[[], Tensor]) -> State:
        """Return the state before the first epoch, given the outputs of the initial network.

        Args:
            state: the state from `start`.
            outputs: computes the network's outputs on the clean training images, (N, C), in evaluation mode, in one
                pass.
        """
        return state

    def after_batch(self, state: State, step: Step, batch: TrainingBatch) -> State:
        """Return the state after a step. It must not synchronise with the device."""
        return state

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Return the state after an epoch (from 0), given the signals of the epoch."""
        return state

    @abstractmethod
    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the settings of an epoch (from 0): those of the previous schedules, modified by this one.

        It may be called before each step.
        """


def latest(known: Tensor, measured: Tensor) -> Tensor:
    """Return the measurements of an epoch, (C,), with those known before for the classes without images in it (NaN)."""
    now = measured.float()
    return torch.where(now.isnan(), known, now)
