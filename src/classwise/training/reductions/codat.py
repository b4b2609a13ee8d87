"""CODAT: the worst mixture of class losses within a chi-square ball around the uniform one (Zhi et al., 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.core.config import NonNegative, configurable
from classwise.core.description import Described
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.reductions.base import per_image

_ROUNDING = 1e-9


@configurable
class Codat(Described):
    """max over p of sum_c p_c L_c, where L_c is the mean loss of class c in the batch.

    p sums to 1, is not negative, and its chi-square divergence from uniform, 1/C sum_c (C p_c - 1)^2, is at most rho.
    While no p_c would be negative, that is mean_c L_c + sqrt(rho) std_c L_c with the population's deviation. C counts
    the classes that the batch holds.

    Args:
        rho: the radius of the ball; 0 is the mean over classes, C - 1 and more is the worst class alone.
    """

    source = ("zhi2025codat",)
    changes = ("weight",)
    example = "codat:rho=0.1"

    rho: NonNegative = 0.1

    def __call__(self, step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
        """The worst mixture of the batch's class losses, (). The mixture itself gets no gradient (Danskin)."""
        losses = per_image(step, batch, settings)
        classes = _classes(step)
        count = torch.zeros(classes, device=losses.device).index_add_(0, batch.y, torch.ones_like(losses))
        total = torch.zeros(classes, device=losses.device).index_add(0, batch.y, losses)
        means = total / count.clamp_min(1)
        return (worst_mixture(means.detach(), count > 0, self.rho) * means).sum()


def worst_mixture(losses: Tensor, present: Tensor, rho: float) -> Tensor:
    """The weights p that maximise sum_c p_c L_c in the chi-square ball, (C,); 0 for absent classes.

    For every k, the candidate that leaves only the k largest losses a weight has a closed form; those without a
    negative weight lie in the ball, the maximum is one of them, so the best of them is it.

    Args:
        losses: L, (C,); entries of absent classes do not matter.
        present: which classes take part, bool (C,); at least one.
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
    best = len(value) - 1 - value.flip(0).argmax(0, keepdim=True)  # of equals the one that shares among the most
    slope, mean, size_of_best = slope.gather(0, best), mean.gather(0, best), size.gather(0, best)
    weights = (1 + slope * (centred - mean)).clamp_min(0) * (size <= size_of_best)
    return torch.zeros_like(weights).scatter(0, order, weights / weights.sum()).to(losses.dtype)


def _classes(step: Step) -> int:
    """The number of classes, from whatever logits the step left."""
    logits = step.clean_logits if step.robust_logits is None else step.robust_logits
    assert logits is not None
    return logits.shape[1]
