"""Adversarial training (Madry et al., ICLR 2018, eq. 2.1), also mixed with clean images."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from classwise.core.compute.precision import Forward
from classwise.core.settings.config import NonNegative, configurable
from classwise.core.settings.description import PassCounts
from classwise.training.classes import ClassSettings, Term
from classwise.training.objectives.base import Objective, Step, TrainingBatch


@configurable
class AdversarialTraining(Objective):
    """Adversarial training: CE(f(x'), y), x' from the inner attack on the cross-entropy."""

    source = ("madry2018towards, eq. 2.1",)
    changes = ("loss",)
    example = "at"
    cost = PassCounts(forward=1, to_weights=1)

    weighted_terms: ClassVar[frozenset[Term]] = frozenset({"robust"})

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the cross-entropy at ``x'``."""
        logits = self.criterion.scaled(model, settings)(points["robust"])
        return Step({"robust": self.criterion(logits, batch.y, settings)}, robust_logits=logits)


@configurable
class MixedAdversarialTraining(AdversarialTraining):
    """Mixed adversarial training: clean_weight CE(f(x), y) + robust_weight CE(f(x'), y).

    Args:
        clean_weight: the weight of the clean cross-entropy.
        robust_weight: the weight of the cross-entropy at ``x'``.
    """

    source = ("goodfellow2015explaining",)
    example = "mixed:clean_weight=0.5,robust_weight=0.5"
    cost = PassCounts(forward=2, to_weights=2)

    clean_weight: NonNegative = 0.5
    robust_weight: NonNegative = 0.5

    weighted_terms: ClassVar[frozenset[Term]] = frozenset({"clean", "robust"})

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute both cross-entropies."""
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        terms = {
            "clean": self.clean_weight * self.criterion(clean, batch.y, settings),
            "robust": self.robust_weight * self.criterion(robust, batch.y, settings),
        }
        return Step(terms, clean_logits=clean, robust_logits=robust)
