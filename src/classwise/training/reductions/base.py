"""From the terms of a step to one number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch

Reduction = Callable[[Step, TrainingBatch, ClassSettings], Tensor]


def per_image(step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
    """The weighed sum of the terms, (N,)."""
    weighed = []
    for name, term in step.terms.items():
        weight = settings.of(f"{name}_weight", batch.y) if name in ("clean", "robust") else None
        weighed.append(term if weight is None else term * weight)
    return torch.stack(weighed).sum(0)


def mean(step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
    """The mean over the batch's images, ()."""
    return per_image(step, batch, settings).mean()


def normalised(step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
    """Each term's weighed mean over the batch, divided by the sum of its weights there and not by their number, ().

    Without weights it is the plain mean. FRL's (Xu et al., ICML 2021).
    """
    means = []
    for name, term in step.terms.items():
        weight = settings.of(f"{name}_weight", batch.y) if name in ("clean", "robust") else None
        means.append(term.mean() if weight is None else (term * weight).sum() / weight.sum().clamp_min(1e-12))
    return torch.stack(means).sum()
