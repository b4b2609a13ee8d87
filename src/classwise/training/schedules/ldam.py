"""LDAM with deferred re-weighting (Cao et al., NeurIPS 2019, eq. 12 and algorithm 1): rare classes ask for a margin."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import pydantic
import torch
from torch import Tensor

from classwise.core.config import NonNegative, Positive, configurable
from classwise.training.classes import ClassSettings, Signals, Term
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import BOTH, apply_class_weights
from classwise.training.schedules.long_tail import Base, balanced, effective


@configurable
class LDAM(ClassSchedule):
    """The logit margin of class c is largest (n_c / min n)^(-1/4); late in training effective-number weights join it.

    A criterion applies them, under any objective. On balanced data, ``robust`` puts n_c a_c for n_c, a_c the
    robust accuracy on the training batches of the last epoch (the count itself until one is known; at least 1).

    Args:
        max_margin: the margin of the rarest class, in logits; 0.5 in the paper.
        scale: what logits are multiplied by after the margin; 30 in the paper, whose logits are cosines. 1 is for
            ordinary logits.
        start_epoch: the epoch (from 0) from which weights act: 160 of 200 in the paper.
        base: b of the effective number.
        robust: whether n counts robust images.
        terms: what losses are weighed.
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
    def weighs(self) -> frozenset[Term]:
        """The terms."""
        return frozenset(self.terms)

    def start(self, classes: Classes) -> State:
        """The counts."""
        counts = classes.counts.float()
        return {"counts": counts, "robust": torch.ones_like(counts)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Take over the accuracy of the classes that were seen."""
        del epoch
        now = signals["train.robust"].float()
        return {**state, "robust": torch.where(now.isnan(), state["robust"], now)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The margins, and late in training the weights."""
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
        """The margin of each class, (C,), given its images and whether it has any; 0 for one without."""
        rarest = counts.masked_fill(~present, torch.inf).amin()
        return torch.where(present, self.max_margin * (counts / rarest) ** -0.25, 0.0)
