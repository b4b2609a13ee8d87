"""Targeted attacks: towards one class (Benz et al., 2021, section 3.3), or by false positives (FAIR-TAT, 2024)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from classwise.core.settings.config import ClassName, Positive, configurable
from classwise.training.classes.signals import ClassSettings, Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State


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

    needs = frozenset({"target"})

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


@configurable
class FairTAT(ClassSchedule):
    """Sample targets from the other classes in proportion to their false positives in the previous epoch.

    The false positives of a class are the images of other classes misclassified as it, on the training batches under
    attack. In the first epoch, targets are uniform over the other classes.

    With ``variant="code"``, as in the public code, a target has the probability softmax(2 s), restricted to the other
    classes, where s is the share of each class in all false positives. It is close to uniform: the odds of two classes
    are at most e^2.

    Args:
        smoothing: pseudo-count added to the false positives of each class; not used with ``variant="code"``.
        variant: the distribution of the paper or of the public code.
    """

    source = ("medi2025fairtat",)
    changes = ("target",)
    example = "fair-tat:smoothing=1"

    smoothing: Positive = 1.0
    variant: Literal["paper", "code"] = "paper"

    reads = frozenset({"train.confusion"})
    needs = frozenset({"target"})

    def start(self, classes: Classes) -> State:
        """Return zero counts."""
        return {"false_positives": torch.zeros(len(classes), device=classes.device)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Count the false positives of the epoch."""
        confusion = signals["train.confusion"]
        return {"false_positives": confusion.sum(0) - confusion.diagonal()}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the target distribution of the epoch, (C, C)."""
        counts = state["false_positives"]
        odds = counts + self.smoothing if self.variant == "paper" else (2 * counts / counts.sum().clamp_min(1)).exp()
        odds = odds.expand(len(counts), -1).clone()
        odds.fill_diagonal_(0)
        return dataclasses.replace(before, target=odds / odds.sum(1, keepdim=True).clamp_min(1e-12))
