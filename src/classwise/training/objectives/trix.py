"""TRIX's attacks (Medi et al., 2025): targeted for images of easy classes, untargeted for the others."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.core.compute.precision import Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import NonNegative, configurable
from classwise.training.classes import ClassSettings, class_sums
from classwise.training.objectives.base import TrainingBatch, clean_logits
from classwise.training.objectives.trades import Trades
from classwise.training.similarity_weights import class_weights


@configurable
class Trix(Trades):
    """TRADES with targeted attacks on images of the easy classes; targets are uniform over the other classes.

    A class is easy if its weight by DAFA's formula, on the clean softmax of the batch, is below the mean weight over
    the images of the batch. A targeted attack minimises the cross-entropy to its target. The schedule ``dafa``
    implements the weights and radii of TRIX.

    Args:
        beta: the weight of the divergence; a class schedule may set it per class.
        strength: lambda of DAFA's formula.
    """

    source = ("medi2025trix",)
    changes = ("loss", "target")
    example = "trix:beta=6,strength=1"

    strength: NonNegative = 1.0

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """Compute ``x'`` by the inner attack, targeted for images of easy classes."""
        model = self.criterion.scaled(model, settings)
        reference = clean_logits(model, batch)
        classes = reference.shape[1]
        others = rng.child("target").integers(batch.index, (), classes - 1)
        easy = self.easy(batch.gather(reference), batch.gather(batch.y))[batch.rows]
        target = torch.where(easy, (batch.y + 1 + others) % classes, -1)
        targeted = dataclasses.replace(batch, target=target)
        return {"robust": attack.run(model, targeted.attack_inputs(rng, reference=reference))}

    def easy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return whether the class of each image is easy, bool (N,).

        Args:
            logits: logits on the clean images, (N, C).
            y: labels, int64 (N,).
        """
        total, count = class_sums(logits.detach().float().softmax(1), y, logits.shape[1])
        confidence = torch.where(count[:, None] > 0, total / count[:, None], torch.nan)
        weights = class_weights(confidence, self.strength)[y]
        return weights < weights.mean()
