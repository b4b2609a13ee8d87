"""LDAM with deferred re-weighting (Cao et al., NeurIPS 2019, eq. 12 and algorithm 1): logit margins by class size."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import pydantic
import torch
from torch import Tensor

from classwise.core.settings.config import NonNegative, Positive, configurable
from classwise.training.classes import ClassSettings, Signals, Term
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import BOTH, apply_class_weights
from classwise.training.schedules.long_tail import Base, balanced, effective


@configurable
class LDAM(ClassSchedule):
    """Logit margins max_margin (n_c / min n)^(-1/4), and effective-number weights from ``start_epoch`` on.

    The margins apply to any objective, through its criterion.

    Args:
        max_margin: the margin of the smallest class, in logits; 0.5 in the paper.
        scale: the factor of the logits after the margin; 30 in the paper, whose logits are cosines. Use 1 for ordinary
            logits.
        start_epoch: the first epoch (from 0) with weights; 160 of 200 in the paper.
        base: b of the effective number.
        robust: use n_c a_c instead of n_c, for balanced data; a_c is the robust accuracy on the training batches of the
            last epoch (1 before the first). n_c a_c is at least 1.
        terms: the weighted terms of the loss.
    """

    source = ("cao2019learning",)
    changes = ("weight", "margin")
    example = "ldam:max_margin=0.5,scale=1"

    max_margin: NonNegative = 0.5
    scale: Positive = 30.0
    start_epoch: Annotated[int, pydantic.Field(ge=0)] = 160
    base: Base = 0.9999
    robust: bool = False
    terms: tuple[Term, ...] = BOTH

    reads = frozenset({"train.robust"})
    sets_scale = True

    @property
    def weighted_terms(self) -> frozenset[Term]:
        """The field ``terms``."""
        return frozenset(self.terms)

    def start(self, classes: Classes) -> State:
        """Return the class counts, and a robust accuracy of 1."""
        counts = classes.counts.float()
        return {"counts": counts, "robust": torch.ones_like(counts)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update the robust accuracy of the classes with images in the epoch."""
        del epoch
        now = signals["train.robust"].float()
        return {**state, "robust": torch.where(now.isnan(), state["robust"], now)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the margins and, from ``start_epoch`` on, the weights."""
        counts = state["counts"]
        present = counts > 0
        seen = (counts * state["robust"] if self.robust else counts).clamp_min(1)
        scale = torch.full((), self.scale, device=counts.device)
        after = dataclasses.replace(before, logit_margin=self.margins(seen, present), scale=scale)
        return (
            after
            if epoch < self.start_epoch
            else apply_class_weights(after, balanced(effective(seen, self.base), present), self.terms)
        )

    def margins(self, counts: Tensor, present: Tensor) -> Tensor:
        """Compute the margin of each class, (C,); 0 for a class without images.

        Args:
            counts: the number of images of each class, (C,).
            present: whether a class has images, bool (C,).
        """
        rarest = counts.masked_fill(~present, torch.inf).amin()
        return torch.where(present, self.max_margin * (counts / rarest) ** -0.25, 0.0)
