"""Standard training: cross-entropy on clean images."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from classwise.attacks.base import Attack
from classwise.core.config import configurable
from classwise.core.description import Passes
from classwise.core.precision import Forward
from classwise.core.rng import CounterRNG
from classwise.training.classes import ClassSettings, Term
from classwise.training.objectives.base import Objective, Step, TrainingBatch


@configurable
class Standard(Objective):
    """CE(f(x), y)."""

    source = ("goodfellow2016deep, section 6.2.1",)
    example = "standard"
    cost = Passes(forward=1, to_weights=1)
    attacks = False

    weighed: ClassVar[frozenset[Term]] = frozenset({"clean"})

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """None are needed."""
        del model, batch, attack, settings, rng
        return {}

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """The cross-entropy of the clean images."""
        del points
        logits = self.criterion.scaled(model, settings)(batch.x)
        return Step({"clean": self.criterion(logits, batch.y, settings)}, clean_logits=logits)
