"""CSR's weights of confusions: the top singular pair of the confusion matrix under attack (Jin et al., 2025)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.core.settings.config import NonNegative, Positive, configurable
from classwise.training.classes.signals import ClassSettings, Signals
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.schedules.base import Classes, ClassSchedule, State


@configurable
class ConfusionSpectrum(ClassSchedule):
    """Set ``pair_weight`` to u1 v1^T of the previous epoch's confusion rates, rescaled to [low, high].

    The rates are the errors on the attacked images of the training steps, as fractions of the true class. For the
    prediction, the logit of the true class is multiplied by ``handicap``. All weights are 1 in the first epoch, and if
    there is no error.

    Args:
        low: the smallest weight.
        high: the largest weight.
        handicap: the factor of the logit of the true class.
    """

    source = ("jin2025enhancing",)
    changes = ("weight",)
    example = "csr:handicap=0.9"

    low: NonNegative = 0.01
    high: Positive = 2.01
    handicap: Positive = 0.9

    needs = frozenset({"pair_weight"})

    def start(self, classes: Classes) -> State:
        """Return zero counts and equal weights, (C, C); rows: true classes, columns: predictions."""
        zeros = torch.zeros(len(classes), len(classes), device=classes.device)
        return {"errors": zeros, "seen": zeros[0].clone(), "weight": torch.ones_like(zeros)}

    def after_batch(self, state: State, step: Step, batch: TrainingBatch) -> State:
        """Count the errors of the batch."""
        logits = step.robust_logits
        if logits is None:
            return state
        logits, y = logits.detach(), batch.y
        own = logits.gather(1, y[:, None])
        predicted = logits.scatter(1, y[:, None], own * self.handicap).argmax(1)
        wrong = (predicted != y).float()
        errors = state["errors"].index_put((y, predicted), wrong, accumulate=True)
        return {**state, "errors": errors, "seen": state["seen"].index_add(0, y, torch.ones_like(wrong))}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Compute the weights of the next epoch and reset the counts."""
        rates = state["errors"] / state["seen"].clamp_min(1)[:, None]
        weight = spectral_weights(rates, self.low, self.high)
        return {"errors": torch.zeros_like(rates), "seen": torch.zeros_like(state["seen"]), "weight": weight}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the weights of confusions."""
        return dataclasses.replace(before, pair_weight=state["weight"])


def spectral_weights(confusion: Tensor, low: float, high: float) -> Tensor:
    """Compute u1 v1^T of a confusion matrix, rescaled to a minimum of ``low`` and a maximum of ``high``, (C, C).

    All entries are 1 if the product is constant, for example for a zero matrix.
    """
    left, _, right = torch.linalg.svd(confusion.double())
    product = left[:, :1] @ right[:1]
    span = product.amax() - product.amin()
    known = (span > 1e-9) & (confusion.amax() > 0)
    stretched = low + (high - low) * (product - product.amin()) / torch.where(known, span, 1.0)
    return torch.where(known, stretched, 1.0).to(confusion.dtype)
