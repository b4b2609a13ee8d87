"""Methods of long-tail learning: weights, margins, logit adjustments and radii by the number of images of a class.

Effective number: Cui et al., CVPR 2019, eq. 3. LDAM with deferred re-weighting: Cao et al., NeurIPS 2019, eq. 12 and
algorithm 1. For balanced data, Benz et al., 2021, section 3.3, count the robust
images, or compute the weights from the robust errors. Balanced softmax: Ren et al., NeurIPS 2020. RobustLT: Zhang et
al., CVPR 2026.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import pydantic
import torch
from torch import Tensor

from classwise.core.errors import warn_once
from classwise.core.settings.config import ClassName, NonNegative, Number, Positive, Share, configurable
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
    with a the robust accuracy on the training batches of the previous epoch. With ``count: robust``, n is the number of
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
    def signals(self) -> frozenset[str]:
        """The robust accuracy, where the weights depend on it."""
        return self.reads if self.count == "robust" or self.kind == "robust-error" else frozenset()

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
        if not self.signals:
            return state
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

    Args:
        max_margin: the margin of the smallest class, in logits; 0.5 in the paper.
        scale: the factor of the logits after the margin; 30 in the paper, whose logits are cosines. Use 1 for ordinary
            logits.
        start_epoch: the first epoch (from 0) with weights; 160 of 200 in the paper.
        base: b of the effective number.
        robust: use n_c a_c instead of n_c, for balanced data; a_c is the robust accuracy on the training batches of the
            previous epoch (1 before the first). n_c a_c is at least 1.
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
    needs = frozenset({"logit_margin"})
    sets_scale = True

    @property
    def signals(self) -> frozenset[str]:
        """The robust accuracy, if ``robust``."""
        return self.reads if self.robust else frozenset()

    def start(self, classes: Classes) -> State:
        """Return the class counts, and a robust accuracy of 1."""
        counts = classes.counts.float()
        return {"counts": counts, "robust": torch.ones_like(counts)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Update the robust accuracy of the classes with images in the epoch."""
        return {**state, "robust": latest(state["robust"], signals["train.robust"])} if self.robust else state

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
class BalancedSoftmax(ClassSchedule):
    """Logit adjustment in training: the loss of the logits f_c + tau log n_c, n_c the training images of class c.

    The inner attack and divergences use the unadjusted logits, and so does the trained network, whose predictions are
    therefore those of balanced classes. AT-BSL is AT with this loss. A class without images counts as one with one
    image. For balanced data, all classes get the same constant, which has no effect.

    Args:
        tau: the paper's tau; 1 is the balanced softmax, 0 the unadjusted loss.
    """

    source = ("ren2020balanced", "menon2021longtail, eq. 10", "yue2024revisiting")
    changes = ("loss",)
    example = "balanced-softmax:tau=1"

    tau: NonNegative = 1.0

    needs = frozenset({"logit_adjustment"})

    def start(self, classes: Classes) -> State:
        """Return log n_c, at least 0."""
        return {"logarithms": classes.counts.clamp_min(1).double().log().float()}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the adjustments, which are constant; those of several such schedules add."""
        adjustment = self.tau * state["logarithms"]
        if before.logit_adjustment is not None:
            adjustment = adjustment + before.logit_adjustment
        return dataclasses.replace(before, logit_adjustment=adjustment)


@configurable
class RobustLT(ClassSchedule):
    """RobustLT: radii eps_c = (1 - alpha) eps + tau s_c eps, s_c = sqrt(ln(max n / n_c)), which increase linearly.

    n_c is the number of training images of class c, and tau = alpha / sum_c (n_c / N) s_c, so that the mean radius over
    the images is eps: rare classes get a larger radius than eps, and frequent ones a smaller one. Of epoch t, counted
    from 0, all radii are multiplied by min(t / ``epochs``, 1); there is no perturbation in the first epoch. A step size
    relative to the radius is scaled with it. For balanced data, where s_c is 0 for every class, the radii are eps. The
    radius of a class without training images, which is not used, is eps too.

    Args:
        alpha: the share of eps that is distributed by the number of images; 0.3 in the paper.
        epochs: number of epochs of the increase; 80 of 100 in the paper (beta = 0.8). 0: no increase.
    """

    source = ("zhang2026taming",)
    changes = ("radius",)
    example = "robust-lt:alpha=0.3,epochs=80"

    alpha: Share = 0.3
    epochs: Annotated[int, pydantic.Field(ge=0)] = 80

    needs = frozenset({"epsilon"})

    def start(self, classes: Classes) -> State:
        """Return the radius of each class relative to eps, after the increase."""
        counts = classes.counts.double()
        present = counts > 0
        rarity = torch.where(present, (counts.amax() / counts.clamp_min(1)).log().sqrt(), 0.0)
        mean = (counts * rarity).sum() / counts.sum()
        if not bool(mean > 0):  # balanced
            return {"factors": torch.ones_like(counts, dtype=torch.float32)}
        factors = torch.where(present, 1 - self.alpha + self.alpha * rarity / mean, 1.0)
        return {"factors": factors.float()}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the radii of the epoch."""
        assert before.epsilon is not None
        factors = state["factors"] * (min(epoch / self.epochs, 1.0) if self.epochs else 1.0)
        step = None if before.step_size is None else before.step_size * factors
        return dataclasses.replace(before, epsilon=before.epsilon * factors, step_size=step)


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
