"""CSR: TRADES plus a cross-entropy on attacked images with a weight per confusion (Jin et al., 2025)."""

from __future__ import annotations

from torch import Tensor

from classwise.attacks.losses import divergence
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import NonNegative, Share, configurable
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.objectives.trades import Trades


@configurable
class ConfusionWeighted(Trades):
    """clean_weight CE(f(x), y) + beta KL(S f(x) ‖ S f(x')) + confusion_weight G[y, argmax f(x')] CE(f(x'), y).

    G is the class setting ``pair_weight`` of the schedule ``csr``; 1 by default.

    Args:
        clean_weight: the weight of the clean cross-entropy.
        confusion_weight: the weight of the third term.
        start_fraction: the fraction of training after which this loss applies; TRADES before.
    """

    source = ("jin2025enhancing",)
    changes = ("loss",)
    example = "csr:beta=6,clean_weight=0.7,confusion_weight=0.3"

    clean_weight: NonNegative = 0.7
    confusion_weight: NonNegative = 0.3
    start_fraction: Share = 0.0

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the three terms."""
        if batch.progress < self.start_fraction:
            return super().step(model, batch, points, settings)
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        confused = self.confusion_weight * self.criterion(robust, batch.y, settings)
        if settings.pair_weight is not None:
            confused = confused * settings.pair_weight[batch.y, robust.argmax(1)]
        terms = {
            "clean": self.clean_weight * self.criterion(clean, batch.y, settings),
            "robust": divergence(clean, robust) * self.betas(batch, settings),
            "confused": confused,
        }
        return Step(self.divided(terms, batch, settings), clean_logits=clean, robust_logits=robust)
