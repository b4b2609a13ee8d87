"""Which epoch is the best, judged on the validation split and never on the test set."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Selection = Callable[[Tensor, Tensor], float]
"""Validation robust accuracy of each class (C,; NaN for absent classes) and its counts (C,) to a score."""


def _overall(robust: Tensor, count: Tensor) -> float:
    return float((robust.nan_to_num() * count).sum() / count.sum())


def _worst(robust: Tensor) -> float:
    return float(robust[~robust.isnan()].min())


def overall_plus_worst(robust: Tensor, count: Tensor) -> float:
    """Overall plus worst-class robust accuracy (CFA's rule)."""
    return _overall(robust, count) + _worst(robust)


def overall(robust: Tensor, count: Tensor) -> float:
    """Overall robust accuracy."""
    return _overall(robust, count)


def worst(robust: Tensor, count: Tensor) -> float:
    """Worst-class robust accuracy."""
    del count
    return _worst(robust)


def last(robust: Tensor, count: Tensor) -> float:
    """No selection: every epoch ties, and of ties the later wins."""
    del robust, count
    return torch.inf
