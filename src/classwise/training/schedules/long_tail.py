"""Methods of long-tail learning: class weights and logit margins by the number of images or robust images of a class.

Effective number: Cui et al., CVPR 2019, eq. 3. LDAM with deferred re-weighting: Cao et al., NeurIPS 2019, eq. 12 and
algorithm 1. For balanced data, Benz et al., 2021, section 3.3, count the robust
images, or compute the weights from the robust errors.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import pydantic
import torch
from torch import Tensor

from classwise.core.errors import warn_once
from classwise.core.settings.config import ClassName, NonNegative, Number, Positive, configurable
from classwise.training.classes.signals import ClassSettings, Signals, Term
from classwise.training.schedules.base import Classes, ClassSchedule, State, latest
from classwise.training.schedules.class_weighting import BOTH, apply_class_weights

Base = Annotated[Number, pydantic.Field(ge=0, lt=1)]


def effective(counts: Tensor, base: float) -> Tensor:
    """Compute (1 - b) / (1 - b^n) for counts n >= 1, float64 (C,)."""
    return (1 - base) / (1 - base ** counts.double())


def balanced(weights: Tensor, present: Tensor) -> Tensor:
    """Rescale weights to sum to the number of classes with images, (C,); 0 for a class without images."""
    weights = torch.where(present, weights, 0.0)
    return (weights * present.sum() / weights.sum().clamp_min(1e-12)).float()


@configurable
class ClassWeights(ClassSchedule):
    """Class weights w of mean 1 over the classes with images, for re-weighting the loss or re-sampling the images.

    ``inverse``: 1 / n. ``effective``: (1 - b) / (1 - b^n). ``robust-error``: 1 + strength (mean a - a_c), clamped at 0,
    with a the robust accuracy on the training batches of the last epoch. With ``count: robust``, n is the number of
    images times a (at least 1; a = 1 for a class without a training image so far).

    Args:
        kind: the formula of the weights.
        count: what n counts: ``"images"``, which is constant, or ``"robust"`` images, updated each epoch.
        base: b of the effective number.
        strength: k of the robust error; 1, 2 or 4 in the paper.
        mode: ``"weights"``: multiply the losses by w; ``"sampling"``: sample images in proportion to w, which
            over-samples some classes and under-samples others.
        terms: the weighted terms of the loss.
        start_epoch: the first epoch (from 0) with weights.
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
        """Return the sources of the kind."""
        effective, robust_error = self.source
        return {"effective": (effective,), "robust-error": (robust_error,)}.get(self.kind, ())

    @property
    def weighted_terms(self) -> frozenset[Term]:
        """The field ``terms``; empty if the weights are used for sampling."""
        return frozenset(self.terms if self.mode == "weights" else ())

    def start(self, classes: Classes) -> State:
        """Return the class counts, and a robust accuracy of NaN."""
        counts = classes.counts.float()
        return {"counts": counts, "robust": torch.full_like(counts, torch.nan)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update the robust accuracy of the classes with images in the epoch."""
        robust = latest(state["robust"], signals["train.robust"])
        if self.kind == "robust-error" and bool((1 + self.strength * (robust.nanmean() - robust) < 0).any()):
            warn_once(f"schedule 'class-weights': strength = {self.strength:g} gives negative weights, clamped at 0")
        return {**state, "robust": robust}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the class weights or sampling odds of the epoch."""
        if epoch < self.start_epoch:
            return before
        weights = self.weights(state)
        if self.mode == "weights":
            return apply_class_weights(before, weights, self.terms)
        return dataclasses.replace(before, sampling=weights if before.sampling is None else weights * before.sampling)

    def weights(self, state: State) -> Tensor:
        """Compute w, (C,); 0 for a class without images."""
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

    def start(self, classes: Classes) -> State:
        """Return the class counts, and a robust accuracy of 1."""
        counts = classes.counts.float()
        return {"counts": counts, "robust": torch.ones_like(counts)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update the robust accuracy of the classes with images in the epoch."""
        return {**state, "robust": latest(state["robust"], signals["train.robust"])}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the margins and, from ``start_epoch`` on, the weights."""
        counts = state["counts"]
        present = counts > 0
        seen = (counts * state["robust"] if self.robust else counts).clamp_min(1)
        scale = torch.full((), self.scale, device=counts.device)
        after = dataclasses.replace(before, logit_margin=self.margins(seen, present), scale=scale)
        if epoch < self.start_epoch:
            return after
        return apply_class_weights(after, balanced(effective(seen, self.base), present), self.terms)

    def margins(self, counts: Tensor, present: Tensor) -> Tensor:
        """Compute the margin of each class, (C,); 0 for a class without images.

        Args:
            counts: the number of images of each class, (C,).
            present: whether a class has images, bool (C,).
        """
        rarest = counts.masked_fill(~present, torch.inf).amin()
        return torch.where(present, self.max_margin * (counts / rarest) ** -0.25, 0.0)


@configurable
class CriticalClass(ClassSchedule):
    """Multiply the losses of one class by ``weight``.

    Runs over several weights give a Pareto front, see `classwise.stats.pareto.pareto_front`.

    Args:
        critical: the class, by its name or its label as text.
        weight: the factor k; 1 has no effect.
        terms: the terms of the loss to multiply.
    """

    source = ("benz2021robustness, section 3.3",)
    changes = ("weight",)
    example = "critical-class:critical=3,weight=4"

    critical: ClassName
    weight: NonNegative = 4.0
    terms: tuple[Term, ...] = BOTH

    def start(self, classes: Classes) -> State:
        """Return the weights.

        Raises:
            ClasswiseError: if the class does not exist or has no training image.
        """
        weights = torch.ones(len(classes))
        weights[classes.number(self.critical)] = self.weight
        return {"weights": weights.to(classes.device)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the weights, which are constant."""
        return apply_class_weights(before, state["weights"], self.terms)
