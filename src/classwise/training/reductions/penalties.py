"""Penalties on similar class-mean logits (Benz et al., 2021), and on asymmetric confusions (Najjar et al., 2026)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # the usual alias
from torch import Tensor

from classwise.core.settings.config import NonNegative, Positive, configurable
from classwise.core.settings.description import Described
from classwise.training.classes.signals import ClassSettings, class_sums
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


@configurable
class Asymmetry(Described):
    """Mean loss + strength * sum over class pairs i < j of (s_ij + s_ji) abs(s_ij - s_ji) / (s_ij + s_ji + smoothing).

    s_ij is the mean confidence in class j of the attacked images of class i in the batch (of the clean images, if the
    objective has no attack). The rows of absent classes are 0, so in small batches the penalty also lowers the
    confidence in absent classes. If all classes are present, uniform confidences have no penalty, and a large strength
    trains the model towards them.

    Args:
        strength: the weight of the penalty.
        smoothing: the constant in the denominator, which lowers the weight of rare confusions.
    """

    source = ("najjar2026syfar",)
    changes = ("loss",)
    example = "asymmetry:strength=10,smoothing=0.1"

    strength: NonNegative = 10.0
    smoothing: Positive = 0.1

    #: As `ClassSchedule.fine_tunes`.
    fine_tunes = True

    def __call__(self, step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
        """Compute the regularised mean, ()."""
        soft = soft_confusion(step.logits.float(), batch.y)
        return mean(step, batch, settings) + self.strength * asymmetry_penalty(soft, self.smoothing)


def soft_confusion(logits: Tensor, y: Tensor) -> Tensor:
    """Compute the mean confidences of the images of each class, (C, C); the rows of absent classes are 0.

    Args:
        logits: (N, C).
        y: labels, int64 (N,).
    """
    sums, count = class_sums(logits.softmax(1), y, logits.shape[1])
    return sums / count.clamp_min(1)[:, None]


def asymmetry_penalty(rates: Tensor, smoothing: float) -> Tensor:
    """Compute the sum over i < j of (r_ij + r_ji) abs(r_ij - r_ji) / (r_ij + r_ji + smoothing), ().

    Args:
        rates: confusion rates r, (C, C).
        smoothing: the constant in the denominator, above 0.
    """
    both = rates + rates.T
    return (both * (rates - rates.T).abs() / (both + smoothing)).triu(diagonal=1).sum()
