"""One class before all others (Benz et al., 2021, section 3.3): its loss weighs more, or every attack goes to it."""

from __future__ import annotations

import dataclasses

import torch

from classwise.core.config import ClassName, NonNegative, configurable
from classwise.training.classes import ClassSettings, Term
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import BOTH, apply_class_weights


@configurable
class CriticalClass(ClassSchedule):
    """The losses of one class weigh ``weight``, those of all others 1.

    What one weight gives is a point; runs over weights give a front, which `classwise.stats.pareto.pareto_front` finds.

    Args:
        critical: the class, by its name or its number as text.
        weight: k; 1 changes nothing.
        terms: what losses are weighed.
    """

    source = ("benz2021robustness, section 3.3",)
    changes = ("weight",)
    example = "critical-class:critical=3,weight=4"

    critical: ClassName
    weight: NonNegative = 4.0
    terms: tuple[Term, ...] = BOTH

    @property
    def weighs(self) -> frozenset[Term]:
        """The terms."""
        return frozenset(self.terms)

    def start(self, classes: Classes) -> State:
        """The weights.

        Raises:
            ClasswiseError: if the class is not known, or has no training image.
        """
        weights = torch.ones(len(classes))
        weights[classes.number(self.critical)] = self.weight
        return {"weights": weights.to(classes.device)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The weights, the same in every epoch."""
        del epoch
        return apply_class_weights(before, state["weights"], self.terms)


@configurable
class TowardsClass(ClassSchedule):
    """Attacks on images of other classes go towards one class; those on its own images are untargeted.

    Args:
        target: the class, by its name or its number as text.
    """

    source = ("benz2021robustness, section 3.3",)
    changes = ("target",)
    example = "towards-class:target=3"

    target: ClassName

    def start(self, classes: Classes) -> State:
        """The law of targets.

        Raises:
            ClasswiseError: if the class is not known, or has no training image.
        """
        number = classes.number(self.target)
        law = torch.zeros(len(classes), len(classes))
        law[:, number] = 1
        law[number] = 0
        return {"law": law.to(classes.device)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The law, the same in every epoch."""
        del epoch
        return dataclasses.replace(before, target=state["law"])
