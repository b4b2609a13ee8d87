"""Pareto front of runs: the accuracy of one class against the mean accuracy of the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def pareto_front(accuracies: npt.ArrayLike, critical: int) -> npt.NDArray[np.bool_]:
    """Find the runs on the Pareto front of the accuracy of one class and the mean accuracy of the others.

    A run is dominated by one that is at least as good in both and better in one; equal runs do not dominate each other.

    Args:
        accuracies: (K, C) class accuracies of K runs, fractions, C >= 2; NaN for absent classes.
        critical: label of the class.

    Returns:
        (K,) true for the runs on the front.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    points = np.stack([values[:, critical], np.nanmean(np.delete(values, critical, axis=1), axis=1)], axis=1)
    at_least = (points[:, None] >= points[None]).all(2)  # [a, b]: a is as good as b
    better = (points[:, None] > points[None]).any(2)
    non_dominated: npt.NDArray[np.bool_] = np.logical_not(np.any(at_least & better, axis=0))
    return non_dominated
