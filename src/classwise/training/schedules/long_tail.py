"""Class weights of long-tail learning, by the number of images or by what is still robust of them.

Effective number: Cui et al., CVPR 2019, eq. 3. On balanced data the robust images of a class stand for its images, and
the errors set the weights directly (Benz et al., 2021, section 3.3).
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import pydantic
import torch
from torch import Tensor

from classwise.core.config import NonNegative, Number, configurable
from classwise.training.classes import ClassSettings, Signals, Term
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import BOTH, apply_class_weights, warn_once

Base = Annotated[Number, pydantic.Field(ge=0, lt=1)]


def effective(counts: Tensor, base: float) -> Tensor:
    """(1 - b) / (1 - b^n) for counts n >= 1, float64 (C,)."""
    return (1 - base) / (1 - base ** counts.double())


def balanced(weights: Tensor, present: Tensor) -> Tensor:
    """The weights, 0 where a class has no images, scaled to sum to the number of classes with images, (C,)."""
    weights = torch.where(present, weights, 0.0)
    return (weights * present.sum() / weights.sum().clamp_min(1e-12)).float()


@configurable
class ClassWeights(ClassSchedule):
    """Weights w with sum C over the classes that have images, on the loss or on the drawing of images.

    ``inverse``: 1 / n. ``effective``: (1 - b) / (1 - b^n). ``robust-error``: 1 + strength (mean a - a_c), a the robust
    accuracy on the training batches of the last epoch, clamped at 0. For the first two n is the number of images, or
    with ``count: robust`` the number times a (at least 1; a class without a training image so far counts in full).

    Args:
        kind: which weights.
        count: what n counts: ``"images"``, fixed, or ``"robust"`` ones, epoch by epoch.
        base: b of the effective number.
        strength: k of the robust error, 1, 2 or 4 in the paper.
        mode: ``"weights"`` multiplies losses; ``"sampling"`` draws images in proportion to w (a batch then over-samples
            some classes and under-samples others).
        terms: what losses are weighed.
        start_epoch: the epoch (from 0) from which it acts.
    """

    source = ("cui2019class", "benz2021robustness, section 3.3")
    changes = ("weight", "sampling")
    example = "class-weights:kind=effective,count=robust"

    kind: Literal["inverse", "effective", "robust-error"] = "effective"
    count: Literal["images", "robust"] = "images"
    base: Base = 0.9999
    strength: NonNegative = 1.0
    mode: Literal["weights", "sampling"] = "weights"
    terms: tuple[Term, ...] = BOTH
    start_epoch: Annotated[int, pydantic.Field(ge=0)] = 0

    reads = frozenset({"train.robust"})

    def sources(self) -> tuple[str, ...]:
        """Those of its kind."""
        effective, robust_error = self.source
        return {"effective": (effective,), "robust-error": (robust_error,)}.get(self.kind, ())

    @property
    def weighs(self) -> frozenset[Term]:
        """The terms, unless images are drawn by the weights."""
        return frozenset(self.terms if self.mode == "weights" else ())

    def start(self, classes: Classes) -> State:
        """The counts; nothing is known of the accuracy."""
        counts = classes.counts.float()
        return {"counts": counts, "robust": torch.full_like(counts, torch.nan)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Take over the accuracy of the classes that were seen."""
        del epoch
        now = signals["train.robust"].float()
        robust = torch.where(now.isnan(), state["robust"], now)
        if self.kind == "robust-error" and bool((1 + self.strength * (robust.nanmean() - robust) < 0).any()):
            warn_once(f"schedule 'class-weights': strength = {self.strength:g} turns weights negative; they count as 0")
        return {**state, "robust": robust}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The weights of this epoch."""
        if epoch < self.start_epoch:
            return before
        weights = self.weights(state)
        if self.mode == "weights":
            return apply_class_weights(before, weights, self.terms)
        return dataclasses.replace(before, sampling=weights if before.sampling is None else weights * before.sampling)

    def weights(self, state: State) -> Tensor:
        """w, (C,); 0 for a class without images."""
        present = state["counts"] > 0
        robust = state["robust"]
        if self.kind == "robust-error":
            gap = (robust.nanmean() - robust).nan_to_num(nan=0.0)
            raw = (1 + self.strength * gap).clamp_min(0)  # after_epoch has warned
        else:
            seen = state["counts"] * robust.nan_to_num(nan=1.0) if self.count == "robust" else state["counts"]
            seen = seen.double().clamp_min(1)
            raw = 1 / seen if self.kind == "inverse" else effective(seen, self.base)
        return balanced(raw, present)
