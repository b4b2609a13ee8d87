"""A vector beta that chooses itself (after Tian et al., KDD 2021, section 6.1): whose beta to lower, for whose sake."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.core.config import Count, NonNegative, configurable
from classwise.core.errors import ClasswiseError
from classwise.training.classes import ClassSettings, Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State

Matrix = tuple[tuple[NonNegative, ...], ...]


@configurable
class AutoBeta(ClassSchedule):
    """From the epoch ``begin`` on, the class that takes most from the worst class has a lower beta.

    The pair is chosen once (`chosen`): from the confusion of the training batches under attack in the epoch before, or
    from matrices of an audit, rows by truth.

    Args:
        beta: the lower beta; 0.5 is the paper's lowest.
        start_epoch: the epoch (from 0) from which it acts.
        confusion: counts of predictions under attack, (C, C), in place of those of training.
        homing: counts of images that are right again for a model that was trained without the class that took them,
            (C, C); None to go by the confusion alone.
    """

    source = ("tian2021analysis, section 6.1",)
    changes = ("beta",)
    example = "auto-beta:beta=0.5"

    beta: NonNegative = 0.5
    start_epoch: Count = 100
    confusion: Matrix | None = None
    homing: Matrix | None = None

    reads = frozenset({"train.confusion"})
    needs_beta = True

    def start(self, classes: Classes) -> State:
        """The homing matrix and, if its confusion is given, the choice.

        Raises:
            ClasswiseError: if a matrix has not a row and a column for each class.
        """
        size = len(classes)
        empty = torch.zeros(size, size, device=classes.device)
        homing = self._matrix("homing", size, classes.device)
        given = self._matrix("confusion", size, classes.device)
        whose = torch.full((2,), -1, device=classes.device) if given is None else chosen(given, homing)
        return {"homing": empty if homing is None else homing, "pair": whose}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """The choice, once, before it acts."""
        if epoch + 1 != self.start_epoch or self.confusion is not None:
            return state
        homing = None if self.homing is None else state["homing"]
        return {**state, "pair": chosen(signals["train.confusion"], homing)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The betas of this epoch."""
        assert before.beta is not None
        if epoch < self.start_epoch:
            return before
        lowered = torch.arange(len(before.beta), device=before.beta.device) == state["pair"][1]
        return dataclasses.replace(before, beta=torch.where(lowered, self.beta, before.beta))

    def _matrix(self, name: str, size: int, device: torch.device) -> Tensor | None:
        rows: Matrix | None = getattr(self, name)
        if rows is None:
            return None
        if len(rows) != size or any(len(row) != size for row in rows):
            raise ClasswiseError(
                f"schedule 'auto-beta': {name} should have {size} rows of {size} numbers, one per class"
            )
        return torch.tensor(rows, device=device)


def chosen(confusion: Tensor, homing: Tensor | None = None) -> Tensor:
    """For whose sake, and whose beta to lower: int64 (2,), both -1 where nothing can be chosen.

    The sake is that of the class of least accuracy. The other is the class from which most of its images would come
    home; where none is known to come home, or no homing is given, the class that takes most of its images. Of ties in
    homing the confusion decides, of ties in both the lower number.

    Args:
        confusion: counts of predictions under attack, (C, C), rows by truth; a row of zeros is a class without images.
        homing: counts of the images of i flipped to j that a model trained without j has right, (C, C).
    """
    count = confusion.sum(1)
    accuracy = torch.where(count > 0, confusion.diagonal() / count.clamp_min(1), torch.inf)
    sake = accuracy.argmin(0, keepdim=True)
    taken = confusion[sake].squeeze(0).scatter(0, sake, 0.0)
    if homing is not None:
        home = homing[sake].squeeze(0).scatter(0, sake, 0.0)
        tied = home + taken / (2 * taken.sum().clamp_min(1))  # the confusion parts ties
        taken = torch.where(home.amax() > 0, tied, taken)
    whose = taken.argmax(0, keepdim=True)
    return torch.where(taken.amax() > 0, torch.cat([sake, whose]), -1)
