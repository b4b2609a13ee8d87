"""A regulariser against classes whose logits look alike (Benz et al., 2021, section 3.3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # the field's own name for it
from torch import Tensor

from classwise.core.config import NonNegative, configurable
from classwise.core.description import Described
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.reductions.base import mean


@configurable
class LogitSimilarity(Described):
    """The mean loss, plus strength * mean over pairs j < k of max(0, cos(mean logits of j, mean logits of k)).

    The means are those of the batch's attacked images (of the clean ones, if the objective attacks none); the pairs are
    of classes that the batch holds.

    Args:
        strength: lambda.
    """

    source = ("benz2021robustness, section 3.3",)
    changes = ("loss",)
    example = "logit-similarity:strength=0.1"

    strength: NonNegative = 0.1

    def __call__(self, step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
        """The regularised mean, ()."""
        logits = step.clean_logits if step.robust_logits is None else step.robust_logits
        assert logits is not None
        return mean(step, batch, settings) + self.strength * likeness(logits.float(), batch.y)


def likeness(logits: Tensor, y: Tensor) -> Tensor:
    """Mean of max(0, cosine) over the pairs of class-mean logits, (); 0 for fewer than two classes.

    Args:
        logits: (N, C).
        y: labels, int64 (N,).
    """
    classes = logits.shape[1]
    sums = logits.new_zeros(classes, classes).index_add(0, y, logits)
    count = logits.new_zeros(classes).index_add_(0, y, logits.new_ones(len(y)))
    units = F.normalize(sums, dim=1)  # the cosine of a mean is that of its sum
    present = (count > 0).to(logits.dtype)
    pairs = torch.triu(present[:, None] * present, diagonal=1)
    return ((units @ units.T).clamp_min(0) * pairs).sum() / pairs.sum().clamp_min(1)
