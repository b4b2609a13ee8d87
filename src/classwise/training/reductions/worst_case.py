"""Worst-case class distributions in a ball around the uniform one: FAAL (CVPR 2024) and CODAT (Zhi et al., 2025)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from classwise.core.settings.config import NonNegative, Positive, configurable
from classwise.core.settings.description import Described
from classwise.training.classes.signals import ClassSettings, class_sums
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


_ROUNDING = 1e-9


@configurable
class Codat(Described):
    """Worst-case loss max_p sum_c p_c L_c, L_c the mean loss of class c, p in a chi-square ball around uniform.

    p is a distribution with chi-square divergence 1/C sum_c (C p_c - 1)^2 of at most rho from the uniform distribution.
    If no p_c is 0, the maximum is mean_c L_c + sqrt(rho) std_c L_c (population standard deviation). C is the number of
    classes in the batch.

    Args:
        rho: the radius of the ball; 0 gives the mean over classes, C - 1 or more the worst class.
    """

    source = ("zhi2025codat",)
    changes = ("weight",)
    example = "codat:rho=0.1"

    rho: NonNegative = 0.1

    def __call__(self, step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
        """Compute the worst-case loss, (); p has no gradient (Danskin's theorem)."""
        losses = per_image(step, batch, settings)
        total, count = class_sums(losses, batch.y, step.logits.shape[1])
        means = total / count.clamp_min(1)
        return (worst_mixture(means.detach(), count > 0, self.rho) * means).sum()


def worst_mixture(losses: Tensor, present: Tensor, rho: float) -> Tensor:
    """Compute the p that maximises sum_c p_c L_c in the chi-square ball, (C,); 0 for absent classes.

    For each k, the maximiser with support on the k largest losses has a closed form. The feasible candidates are those
    without negative weights; the best of them is the maximum.

    Args:
        losses: L, (C,); entries of absent classes are ignored.
        present: whether each class is in the batch, bool (C,); at least one is.
        rho: the largest 1/C sum_c (C p_c - 1)^2, with C the number of present classes.
    """
    masked = torch.where(present, losses.double(), -torch.inf)
    ordered, order = masked.sort(descending=True)
    size = torch.arange(1, len(losses) + 1, device=losses.device, dtype=torch.float64)
    valid = size <= present.sum()
    centred = torch.where(valid, ordered - ordered[0], 0.0)
    mean = centred.cumsum(0) / size
    variance = (centred.square().cumsum(0) / size - mean.square()).clamp_min(0)
    deviation = variance.sqrt()
    spread = size * (1 + rho) / present.sum() - 1
    reach = spread.clamp_min(0).sqrt()
    flat = deviation <= _ROUNDING * (1 + centred.abs())
    slope = torch.where(flat, 0.0, reach / torch.where(flat, 1.0, deviation))
    lowest = 1 + slope * (centred - mean)
    feasible = valid & (spread >= -_ROUNDING) & (lowest >= -_ROUNDING)
    value = torch.where(feasible, mean + slope * variance, -torch.inf)
    best = len(value) - 1 - value.flip(0).argmax(0, keepdim=True)  # of ties, the largest support
    slope, mean, size_of_best = slope.gather(0, best), mean.gather(0, best), size.gather(0, best)
    weights = (1 + slope * (centred - mean)).clamp_min(0) * (size <= size_of_best)
    return torch.zeros_like(weights).scatter(0, order, weights / weights.sum()).to(losses.dtype)
