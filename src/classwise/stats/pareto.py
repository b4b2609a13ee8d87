"""Pareto front of runs: the accuracy of one class against the mean accuracy of the others."""

from __future__ import annotations

import operator
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from classwise.core.settings.arguments import checked
from classwise.stats.rational import as_rational


@checked
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
    points = []
    for own, others in zip(values[:, critical], np.delete(values, critical, axis=1), strict=True):
        exact = [as_rational(value) for value in others[~np.isnan(others)]]  # equal means are equal
        points.append((as_rational(own), sum(exact, start=Fraction(0)) / len(exact)))
    dominated = [any(all(map(operator.ge, other, point)) and other != point for other in points) for point in points]
    return ~np.array(dominated, dtype=np.bool_)
