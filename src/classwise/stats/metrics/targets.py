"""Shares of the errors that are predicted as each class (Najjar et al. 2026)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.settings.arguments import checked
from classwise.stats.confusion import misclassified
from classwise.stats.counts import ClassCounts, FloatArray, IntArray, ratio
from classwise.stats.intervals import Estimate
from classwise.stats.metrics.lowest import best_estimate
from classwise.stats.registry import Metric


@checked
def target_shares(matrix: ArrayLike) -> FloatArray:
    """Compute the share of all errors that are predicted as each class (Najjar et al. 2026).

    Args:
        matrix: (C, C) confusion counts, label by prediction; the diagonal is not used.

    Returns:
        (C,) fractions that sum to 1; NaN without errors. The largest is that of the class that absorbs attacks.

    Example:
        >>> from classwise import metrics
        >>> metrics.target_shares([[7, 3, 0], [1, 8, 1], [0, 5, 5]])
        array([0.1, 0.8, 0.1])
    """
    errors = np.nansum(misclassified(matrix), axis=0)
    return ratio(errors, errors.sum())


def target_share_estimate(matrix: IntArray, alpha: float = 0.05) -> Estimate:
    """The largest share of the errors that are predicted as one class, with the interval of `best_estimate`.

    Given the number of all errors, that of a class is treated as binomial; for classes of fixed sizes its variance is
    at most as large.

    Args:
        matrix: (C, C) confusion counts, label by prediction.
        alpha: 1 minus the coverage.

    Returns:
        Fractions; NaN without errors.
    """
    wrong = (matrix.sum(axis=0) - matrix.diagonal()).astype(np.int64)
    if not wrong.any():
        return Estimate(math.nan, math.nan, math.nan)
    return best_estimate(ClassCounts(np.full_like(wrong, wrong.sum()), wrong), alpha)


TARGET_SHARE = Metric(
    "target_share",
    lambda matrix: float(target_shares(matrix).max()),
    title="target share",
    about="largest share of all errors that are predicted as one class",
    reads="confusion",
    higher_is_better=False,
    interval=target_share_estimate,
)
