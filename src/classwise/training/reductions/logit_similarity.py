"""A penalty on the similarity of class-mean logits (Benz et al., 2021, section 3.3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # the usual alias
from torch import Tensor

from classwise.core.settings.config import NonNegative, configurable
from classwise.core.settings.description import Described
from classwise.training.classes import ClassSettings, class_sums
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.reductions.base import mean


@configurable
class LogitSimilarity(Described):
    """Mean loss plus strength * mean over class pairs j < k of max(0, cos(mean logits of j, mean logits of k)).

    The mean logits are over the attacked images of the batch (the clean images, if the objective has no attack); the
    pairs are over the classes in the batch.

    Args:
        strength: the weight lambda of the penalty.
    """

    source = ("benz2021robustness, section 3.3",)
    changes = ("loss",)
    example = "logit-similarity:strength=0.1"

    strength: NonNegative = 0.1

    def __call__(self, step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
        """Compute the regularised mean, ()."""
        return mean(step, batch, settings) + self.strength * class_similarity(step.logits.float(), batch.y)


def class_similarity(logits: Tensor, y: Tensor) -> Tensor:
    """Compute the mean of max(0, cosine) over the pairs of class-mean logits, (); 0 for fewer than two classes.

    Args:
        logits: (N, C).
        y: labels, int64 (N,).
    """
    sums, count = class_sums(logits, y, logits.shape[1])
    units = F.normalize(sums, dim=1)  # the cosine of a mean is that of its sum
    present = (count > 0).to(logits.dtype)
    pairs = torch.triu(present[:, None] * present, diagonal=1)
    return ((units @ units.T).clamp_min(0) * pairs).sum() / pairs.sum().clamp_min(1)
