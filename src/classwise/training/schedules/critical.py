"""Emphasis on one class (Benz et al., 2021, section 3.3): a larger loss weight, or attacks targeted at it."""

from __future__ import annotations

import dataclasses

import torch

from classwise.core.settings.config import ClassName, NonNegative, configurable
from classwise.training.classes import ClassSettings, Term
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import BOTH, apply_class_weights


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


@configurable
class TowardsClass(ClassSchedule):
    """Target the attacks on images of all other classes at one class; attacks on its own images are untargeted.

    Args:
        target: the class, by its name or its label as text.
    """

    source = ("benz2021robustness, section 3.3",)
    changes = ("target",)
    example = "towards-class:target=3"

    target: ClassName

    def start(self, classes: Classes) -> State:
        """Return the target distribution.

        Raises:
            ClasswiseError: if the class does not exist or has no training image.
        """
        number = classes.number(self.target)
        target = torch.zeros(len(classes), len(classes))
        target[:, number] = 1
        target[number] = 0
        return {"target": target.to(classes.device)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the target distribution, which is constant."""
        return dataclasses.replace(before, target=state["target"])
