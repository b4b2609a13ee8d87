"""The basic reductions: mean and weight-normalised mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Spec, make, parse_spec
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.reductions import REDUCTIONS

Reduction = Callable[[Step, TrainingBatch, ClassSettings], Tensor]


def make_reduction(spec: Spec) -> Reduction:
    """Build a reduction: a function by its name, or an object with settings.

    Raises:
        ClasswiseError: if the reduction does not exist, or its settings are invalid.
    """
    name = parse_spec(spec, REDUCTIONS)[0] if isinstance(spec, str) else spec.get("name", "")
    loaded: Any = REDUCTIONS.load(name)
    reduction: Any = make(REDUCTIONS, spec) if isinstance(loaded, type) else loaded
    if reduction is loaded and spec not in (name, {"name": name}):
        raise ClasswiseError(f"reduction {name!r} has no settings; use reduction = {name!r}")
    made: Reduction = reduction
    return made


def per_image(step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
    """Compute the weighted sum of the terms for each image, (N,)."""
    weighted = []
    for name, term in step.terms.items():
        weight = settings.of(f"{name}_weight", batch.y) if name in ("clean", "robust") else None
        weighted.append(term if weight is None else term * weight)
    return torch.stack(weighted).sum(0)


def mean(step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
    """Mean of the weighted losses over the batch, ()."""
    return per_image(step, batch, settings).mean()


def normalised(step: Step, batch: TrainingBatch, settings: ClassSettings) -> Tensor:
    """Weighted mean of each term over the batch, normalised by the sum of its weights, ().

    Without weights this is the mean. Used by FRL (Xu et al., ICML 2021).
    """
    means = []
    for name, term in step.terms.items():
        weight = settings.of(f"{name}_weight", batch.y) if name in ("clean", "robust") else None
        means.append(term.mean() if weight is None else (term * weight).sum() / weight.sum().clamp_min(1e-12))
    return torch.stack(means).sum()
