"""DAFA, distance-aware fair adversarial training (Lee et al., ICLR 2024): weights and radii from class similarity."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from classwise.core.errors import warn_once
from classwise.core.settings.config import Count, NonNegative, configurable
from classwise.training.classes.signals import ClassSettings, Signals, Term
from classwise.training.classes.similarity_weights import class_weights
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import apply_class_weights


@configurable
class DAFA(ClassSchedule):
    """Class weights and radii from the mean softmax under attack in the last warm-up epoch, constant afterwards.

    From ``start_epoch`` on, the radius and step size of class c, and the weights of ``terms``, are multiplied by W_c. P
    is measured on the training batches of the previous epoch, in training mode. A step size relative to the radius is
    scaled with it. (The public code of the paper for AT reverts its own radii; this implementation does not.)

    Args:
        strength: the paper's lambda: 1 for CIFAR-10, 1.5 for CIFAR-100 and STL-10.
        start_epoch: the first epoch (from 0) after the warm-up; 70 of 110 in the paper.
        floor: the smallest weight.
        terms: the weighted terms of the loss: the clean term of TRADES in the paper; use ``robust`` for AT.
        scale_radius: whether to multiply radii and step sizes too.
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
    #: The signal P.
    confidence: ClassVar[str] = "train.confidence"

    def start(self, classes: Classes) -> State:
        """Return weights of 1."""
        return {"weights": torch.ones(len(classes), device=classes.device)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Compute the weights at the end of the warm-up."""
        if epoch + 1 != self.start_epoch:
            return state
        weights = class_weights(signals[self.confidence], self.strength)
        if bool((weights < 0).any()):
            warn_once(f"DAFA: strength = {self.strength:g} gives negative weights, clamped at {self.floor:g}")
        return {"weights": weights.clamp_min(self.floor)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return unmodified settings during the warm-up, then the weighted ones."""
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
    """DAFA with P measured on the validation split, with the averaged weights (ours).

    The confidences of the averaged model vary less between epochs than those of the online model. Without weight
    averaging, the online model is used.
    """

    source = ("lee2024dafa, algorithm 1",)
    example = "dafa-average:strength=1,start_epoch=70"

    reads = frozenset({"valid.average_confidence"})
    confidence = "valid.average_confidence"
