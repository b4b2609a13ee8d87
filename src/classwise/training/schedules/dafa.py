"""DAFA, distance-aware fair adversarial training (Lee et al., ICLR 2024): near classes trade weight and radius."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from classwise.core.config import Count, NonNegative, configurable
from classwise.training.classes import ClassSettings, Signals, Term
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import apply_class_weights, warn_once


def class_weights(confidence: Tensor, strength: float) -> Tensor:
    """The weights of the classes before any clamp, (C,); they sum to C.

    Each pair of classes with P_ii < P_jj moves ``strength`` P_ij P_jj of weight from the easier class j to the harder
    class i, from a start of 1 (the paper's algorithm 1).

    Args:
        confidence: P, the mean softmax of the attacked images of each class, (C, C), rows by truth. A row of a class
            without images is NaN: its pairs move nothing.
        strength: the paper's lambda.
    """
    own = confidence.diagonal()
    moved = torch.where(own[:, None] < own[None, :], confidence * own[None, :], 0.0)  # comparisons with NaN are false
    moved = moved * strength
    return 1 + moved.sum(1) - moved.sum(0)


@configurable
class DAFA(ClassSchedule):
    """Weights from the mean confidences of the last warm-up epoch, fixed from then on.

    From the epoch ``begin`` on: radius and step of class c are W_c times their constants, and so are the weights of
    ``terms``. P is measured on the training batches of the epoch before, as they are. An attack whose step is relative
    to the radius follows by itself. (The paper's public code for AT undoes its own margins; this does not.)

    Args:
        strength: lambda: 1 for CIFAR-10, 1.5 for CIFAR-100 and STL-10 in the paper.
        start_epoch: the epoch (from 0) from which it acts; the paper's 70 of 110.
        floor: the smallest weight.
        terms: what is weighed: the clean term of TRADES, as in the paper; ``robust`` under AT.
        scale_radius: whether radii and steps change too.
    """

    source = ("lee2024dafa, algorithm 1",)
    changes = ("radius", "weight")
    example = "dafa:strength=1,start_epoch=70"

    strength: NonNegative = 1.0
    start_epoch: Count = 70
    floor: NonNegative = 0.1
    terms: tuple[Term, ...] = ("clean",)
    scale_radius: bool = True

    reads = frozenset({"train.confidence"})
    #: The signal that is P.
    confidence: ClassVar[str] = "train.confidence"

    @property
    def weighs(self) -> frozenset[Term]:
        """The terms."""
        return frozenset(self.terms)

    def start(self, classes: Classes) -> State:
        """All classes weigh 1."""
        return {"weights": torch.ones(len(classes), device=classes.device)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """The weights, once, at the end of the warm-up."""
        if epoch + 1 != self.start_epoch:
            return state
        weights = class_weights(signals[self.confidence], self.strength)
        if bool((weights < 0).any()):
            warn_once(f"DAFA: strength = {self.strength:g} turns weights negative; they count as {self.floor:g}")
        return {"weights": weights.clamp_min(self.floor)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The constants during the warm-up, then the weighed ones."""
        if epoch < self.start_epoch:
            return before
        weights = state["weights"]
        after = apply_class_weights(before, weights, self.terms)
        if not self.scale_radius:
            return after
        assert before.epsilon is not None
        step = None if before.step_size is None else before.step_size * weights
        return dataclasses.replace(after, epsilon=before.epsilon * weights, step_size=step)


@configurable
class AverageDAFA(DAFA):
    """DAFA whose P is that of the averaged weights, on the validation split under its attack (ours).

    The average is the model that the run saves, and its confidences vary less from epoch to epoch than those of the
    online model. Without an average, P is that of the online model.
    """

    source = ("lee2024dafa, algorithm 1",)
    changes = ("radius", "weight")
    example = "dafa-average:strength=1,start_epoch=70"

    reads = frozenset({"valid.average_confidence"})
    confidence = "valid.average_confidence"
