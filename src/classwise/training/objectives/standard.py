"""Standard training: the cross-entropy on clean images."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from classwise.core.compute.precision import Forward
from classwise.core.settings.config import configurable
from classwise.core.settings.description import PassCounts
from classwise.training.classes import ClassSettings, Term
from classwise.training.objectives.base import Objective, Step, TrainingBatch


@configurable
class Standard(Objective):
    """Standard training: CE(f(x), y) on clean images."""

    source = ("goodfellow2016deep, section 6.2.1",)
    example = "standard"
    cost = PassCounts(forward=1, to_weights=1)
    attacks = False

    weighted_terms: ClassVar[frozenset[Term]] = frozenset({"clean"})

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the cross-entropy on the clean images."""
        logits = self.criterion.scaled(model, settings)(batch.x)
        return Step({"clean": self.criterion(logits, batch.y, settings)}, clean_logits=logits)
