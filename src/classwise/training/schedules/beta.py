"""Class-wise betas: given (Tian et al., KDD 2021, eq. 5), and lowered for a class that is chosen in training (ours)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import ClassName, Count, NonNegative, configurable
from classwise.training.classes.signals import ClassSettings, Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State

Matrix = tuple[tuple[NonNegative, ...], ...]


@configurable
class VectorBeta(ClassSchedule):
    """Constant betas for some classes; the other classes use the objective's beta.

    Args:
        beta: beta by class, such as ``{"cat": 0.5}``; keys are names, or labels as text.
    """

    source = ("tian2021analysis, section 6.1",)
    changes = ("beta",)
    example = "vector-beta:beta.cat=0.5"

    beta: dict[ClassName, NonNegative]

    needs = frozenset({"beta"})

    def start(self, classes: Classes) -> State:
        """Return the betas, (C,); NaN for the other classes.

        Raises:
            ClasswiseError: if no class is given, or one does not exist or has no training image.
        """
        values = torch.full((len(classes),), torch.nan)
        for name, beta in self.beta.items():
            values[classes.number(name)] = beta
        if values.isnan().all():
            raise ClasswiseError("schedule 'vector-beta': beta must have at least one class, such as {cat: 0.5}")
        return {"beta": values.to(classes.device)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the betas, which are constant."""
        assert before.beta is not None
        return dataclasses.replace(before, beta=torch.where(state["beta"].isnan(), before.beta, state["beta"]))


@configurable
class AutoBeta(ClassSchedule):
    """Lower beta, from ``start_epoch`` on, for the class that absorbs most misclassifications of the worst class.

    The pair of classes is chosen once by `chosen`: from the confusion matrix of the training batches under attack in
    the previous epoch, or from matrices of an audit (rows: true classes).

    Args:
        beta: the lower beta; 0.5 is the lowest in the paper.
        start_epoch: the first epoch (from 0) with the lower beta.
        confusion: counts of predictions under attack, (C, C), to use instead of those measured in training.
        homing: counts of images that are classified correctly by a model trained without the predicted class, (C, C);
            None to use the confusion matrix only.
    """

    source = ("tian2021analysis, section 6.1",)
    changes = ("beta",)
    example = "auto-beta:beta=0.5"

    beta: NonNegative = 0.5
    start_epoch: Count = 100
    confusion: Matrix | None = None
    homing: Matrix | None = None

    reads = frozenset({"train.confusion"})
    needs = frozenset({"beta"})

    def start(self, classes: Classes) -> State:
        """Return the homing matrix and, if the field ``confusion`` is set, the chosen pair.

        Raises:
            ClasswiseError: if a matrix is not (C, C).
        """
        size = len(classes)
        empty = torch.zeros(size, size, device=classes.device)
        homing = self._matrix("homing", size, classes.device)
        given = self._matrix("confusion", size, classes.device)
        pair = torch.full((2,), -1, device=classes.device) if given is None else chosen(given, homing)
        return {"homing": empty if homing is None else homing, "pair": pair}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Choose the pair at the end of the epoch before ``start_epoch``."""
        if epoch + 1 != self.start_epoch or self.confusion is not None:
            return state
        homing = None if self.homing is None else state["homing"]
        return {**state, "pair": chosen(signals["train.confusion"], homing)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the betas of the epoch."""
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
            raise ClasswiseError(f"schedule 'auto-beta': {name} must have {size} rows of {size} numbers, one per class")
        return torch.tensor(rows, device=device)


def chosen(confusion: Tensor, homing: Tensor | None = None) -> Tensor:
    """Choose the worst class and the class whose beta is lowered.

    The worst class is the one of lowest accuracy. The other is the class with the largest entry in the worst class's
    row of ``homing``; if that row is zero or ``homing`` is None, in its row of ``confusion``. Ties in ``homing`` are
    resolved by ``confusion``, ties in both by the lower label.

    Args:
        confusion: counts of predictions under attack, (C, C), rows: true classes; a row of zeros is a class without
            images.
        homing: entry (i, j): images of class i misclassified as j that a model trained without class j classifies
            correctly, (C, C).

    Returns:
        The labels of the two classes, int64 (2,); both are -1 if no image is misclassified.
    """
    count = confusion.sum(1)
    accuracy = torch.where(count > 0, confusion.diagonal() / count.clamp_min(1), torch.inf)
    worst = accuracy.argmin(0, keepdim=True)
    errors = confusion[worst].squeeze(0).scatter(0, worst, 0.0)
    if homing is not None:
        home = homing[worst].squeeze(0).scatter(0, worst, 0.0)
        tied = home + errors / (2 * errors.sum().clamp_min(1))  # the confusion matrix resolves ties
        errors = torch.where(home.amax() > 0, tied, errors)
    absorbing = errors.argmax(0, keepdim=True)
    return torch.where(errors.amax() > 0, torch.cat([worst, absorbing]), -1)
