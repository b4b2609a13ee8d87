"""The front of runs that trade one class for the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def pareto_front(accuracies: npt.ArrayLike, critical: int) -> npt.NDArray[np.bool_]:
    """Which runs no other run beats, by the accuracy of one class and by the mean of the others.

    A run is beaten by one that is at least as good in both and better in one; equal runs do not beat each other.

    Args:
        accuracies: class accuracies, fractions, a row for each run: (K, C) with C >= 2. NaN for classes without images.
        critical: the number of the class.

    Returns:
        (K,), true for the runs on the front.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    points = np.stack([values[:, critical], np.nanmean(np.delete(values, critical, axis=1), axis=1)], axis=1)
    at_least = (points[:, None] >= points[None]).all(2)  # [a, b]: a is as good as b
    better = (points[:, None] > points[None]).any(2)
    unbeaten: npt.NDArray[np.bool_] = np.logical_not(np.any(at_least & better, axis=0))
    return unbeaten
