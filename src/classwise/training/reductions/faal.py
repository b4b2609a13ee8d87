"""FAAL (Zhang et al., CVPR 2024): the worst-case class distribution in a KL ball around the uniform distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from classwise.core.settings.config import Positive, configurable
from classwise.core.settings.description import Described
from classwise.training.classes import ClassSettings, class_sums
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.reductions.base import per_image

_GRID = 256
_ROUNDS = 6
"""Each round narrows the bracket of log mu by the factor ``_GRID - 1``: 6 rounds narrow a bracket of 700 to 1e-11."""


def worst_distribution(margins: Tensor, radius: float) -> Tensor:
    """Compute the p that maximises sum_c p_c m_c with KL(U ‖ p) <= radius, float64 (C,).

    The Lagrangian gives p_c = k / (mu - m_c) with mu > max m such that the divergence equals the radius. A grid search
    over log(mu - max m), refined a fixed number of times, needs no synchronisation with the device. Equal margins give
    the uniform distribution U.

    Args:
        margins: m, (C,), finite.
        radius: the bound on the divergence in nats, above 0.
    """
    count = len(margins)
    gaps = margins.double().amax() - margins.double()
    gaps = gaps / gaps.amax().clamp_min(torch.finfo(torch.float64).tiny)  # p does not depend on the scale of m
    low = gaps.new_full((), -min(690.0, count * radius + math.log(count) + 2))
    high = gaps.new_full((), math.log(2 / math.sqrt(radius)) + 2)
    shares = torch.linspace(0, 1, _GRID, dtype=torch.float64, device=gaps.device)
    for _ in range(_ROUNDS):
        points = low + (high - low) * shares
        divergence = -_log_distribution(points[:, None], gaps).mean(1) - math.log(count)
        last_outside = ((divergence > radius).sum() - 1).clamp(0, _GRID - 2)  # the divergence decreases along the grid
        low, high = points.take(torch.stack([last_outside, last_outside + 1])).unbind()  # indexing would synchronise
    return _log_distribution((low + high) / 2, gaps).exp()


def _log_distribution(log_distance: Tensor, gaps: Tensor) -> Tensor:
    """Compute log p at mu = max m + exp(log_distance), (..., C)."""
    return (log_distance.exp() + gaps).log().neg().log_softmax(-1)


@configurable
class FAAL(Described):
    """Weighted loss C/N sum_i p_{y_i} l_i, where p maximises the mean class margins with KL(U ‖ p) <= radius.

    The margin of an image is max_{j != y} S_j - S_y, in [-1, 1], with S the softmax on the attacked image (the clean
    image, if the objective has no attack). The margin of a class that is absent from the batch is -1.

    Args:
        radius: the bound on KL(U ‖ p), in nats.
        weighted: multiply the margin of a class by its number of images relative to N / C, as the public code does.
    """

    source = ("zhang2024fairness",)
    changes = ("weight",)
    example = "faal:radius=0.5"

    radius: Positive = 0.5
    weighted: bool = False

    #: As `ClassSchedule.fine_tunes`.
    fine_tunes = True

    def __call__(self, step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
        """Compute the loss, ()."""
        p = worst_distribution(self.margins(step.logits, batch.y), self.radius)
        losses = per_image(step, batch, settings)
        return (losses * p.to(losses.dtype)[batch.y]).mean() * step.logits.shape[1]

    def margins(self, logits: Tensor, y: Tensor) -> Tensor:
        """Compute the mean margin of each class in the batch, (C,)."""
        classes = logits.shape[1]
        probabilities = logits.detach().float().softmax(1)
        own = probabilities.gather(1, y[:, None])
        margin = probabilities.scatter(1, y[:, None], -1.0).amax(1) - own.squeeze(1)
        total, count = class_sums(margin, y, classes)
        share = len(y) / classes if self.weighted else count.clamp_min(1)
        return torch.where(count > 0, total / share, -1.0)
