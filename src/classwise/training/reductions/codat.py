"""CODAT (Zhi et al., 2025): the worst-case class distribution in a chi-square ball around the uniform distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.core.settings.config import NonNegative, configurable
from classwise.core.settings.description import Described
from classwise.training.classes import ClassSettings, class_sums
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.reductions.base import per_image

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
