"""Confidence intervals of metrics of all classes: CV, MCD, means, worst class, harmonic means and confusions.

Simultaneous intervals of the classes form a box that contains all true class accuracies with probability 1 - alpha. The
minimum and maximum of CV and MCD over the box bound them with at least that probability. The lower end of the worst
class, and of the worst fifth, needs less correction for the number of classes (`classwise.stats.intervals`).
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from classwise.stats.confusion import max_asymmetry
from classwise.stats.counts import ClassCounts, FloatArray, IntArray, ratio
from classwise.stats.intervals import (
    Estimate,
    class_intervals,
    lowest_interval,
    sidak,
    wilson,
)
from classwise.stats.metrics import (
    class_variance,
    classes_of_share,
    hmw,
    max_class_discrepancy,
    nrr,
    overall_macro,
    overall_micro,
    worst_class,
    worst_share,
)
from classwise.stats.stratified import class_mean

FIFTH = 0.2
"""The share of the classes in `worst_fifth`."""
_ALL_CORNERS = 10
"""Up to this number of classes, all corners of a box are tried."""
_HALVINGS = 50
"""Bisection steps."""


def overall(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The accuracy over all images, with Wilson's interval."""
    low, high = wilson(counts.correct.sum(), counts.count.sum(), alpha)
    return Estimate(overall_micro(counts), float(low), float(high))


def macro(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The mean of the class accuracies, with the interval of `classwise.stats.stratified.class_mean`."""
    return class_mean(counts, alpha)


def worst(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The lowest class accuracy, with the interval of `lowest_interval`."""
    return Estimate(worst_class(counts.accuracy).accuracy, *lowest_interval(counts, alpha))


def best(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The highest class accuracy, whichever class it is, with 1 minus `lowest_interval` of the error rates."""
    errors = lowest_interval(ClassCounts(counts.count, counts.wrong), alpha)
    return Estimate(float(np.nanmax(counts.accuracy)), 1 - errors[1], 1 - errors[0])


def worst_label(counts: ClassCounts) -> int:
    """The label of the class with the lowest accuracy on these images."""
    return worst_class(counts.accuracy).label


def worst_fifth(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The mean accuracy of the lowest fifth of the classes, with the interval of `lowest_interval`."""
    number = classes_of_share(int(counts.present.sum()), FIFTH)
    return Estimate(worst_share(counts.accuracy, FIFTH), *lowest_interval(counts, alpha, number=number))


def discrepancy(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """Maximal class discrepancy (MCD): the highest class accuracy minus the lowest."""
    low, high = _box(counts, alpha)
    least = max(float(low.max() - high.min()), 0.0)
    return Estimate(max_class_discrepancy(counts.accuracy), least, float(high.max() - low.min()))


def variance(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """Class-wise variance (CV), a fraction squared.

    The greatest variance in a box is at a corner. All corners are tried for up to `_ALL_CORNERS` classes; for more the
    maximum is bounded from above. At the least variance, every class is as near to one common point as its interval
    allows.
    """
    low, high = _box(counts, alpha)
    return Estimate(class_variance(counts.accuracy), _least_variance(low, high), _greatest_variance(low, high))


def beyond_mean(counts: ClassCounts, alpha: float = 0.05) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The accuracy of each class minus the mean over the classes, with intervals.

    It is (1 - 1/C) times the accuracy minus the mean over the other classes. Its interval combines the distances to the
    ends of their intervals in quadrature (MOVER; Zou and Donner 2008). Unlike a bootstrap interval, it is not of zero
    width for a class at 0 or 1.

    Returns:
        Differences, lower ends and upper ends: three (C,) arrays, NaN for absent classes.
    """
    low, high = class_intervals(counts, alpha)
    value, down, up = np.full((3, counts.num_classes), np.nan)
    present = np.flatnonzero(counts.present)
    if len(present) == 1:
        value[present] = down[present] = up[present] = 0.0
        return value, down, up
    for label in present:
        rest, own = present[present != label], float(counts.accuracy[label])
        others = class_mean(ClassCounts(counts.count[rest], counts.correct[rest]), alpha)
        value[label] = own - others.value
        down[label] = value[label] - math.hypot(own - low[label], others.high - others.value)
        up[label] = value[label] + math.hypot(high[label] - own, others.value - others.low)
    share = 1 - 1 / len(present)
    return share * value, share * down, share * up


def clean_and_robust(clean: ClassCounts, robust: ClassCounts, alpha: float = 0.05) -> Estimate:
    """NRR: the harmonic mean of clean and robust overall accuracy, from simultaneous intervals."""
    level = sidak(alpha, 2)
    first, second = overall(clean, level), overall(robust, level)
    return Estimate(*(nrr(a, b) for a, b in zip(first, second, strict=True)))


def overall_and_worst(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """HMW: the harmonic mean of overall and worst-class accuracy, from simultaneous intervals."""
    level = sidak(alpha, 2)
    first, second = overall(counts, level), worst(counts, level)
    return Estimate(*(hmw(a, b) for a, b in zip(first, second, strict=True)))


def asymmetry(matrix: IntArray, alpha: float = 0.05) -> Estimate:
    """The largest abs(C_ij - C_ji) over pairs of classes, from simultaneous intervals of all these differences.

    The two rates of a pair are of images of two classes, so they are independent. The interval of a difference combines
    the distances to the ends of Clopper and Pearson's intervals of its rates in quadrature (MOVER; Zou and Donner
    2008). It is corrected for the number of pairs (Sidak).

    Args:
        matrix: (C, C) confusion counts, label by prediction.
        alpha: 1 minus the coverage.

    Returns:
        Fractions; NaN without two classes that have images.
    """
    value, images = max_asymmetry(matrix).gap, matrix.sum(axis=1, keepdims=True)
    if math.isnan(value):
        return Estimate(value, value, value)
    level = sidak(alpha, math.comb(np.count_nonzero(images), 2))
    base = int(images.max()) + 1
    cells, place = np.unique(base * images + matrix, return_inverse=True)  # most cells of many classes are equal
    ends = class_intervals(ClassCounts(*np.divmod(cells, base)), level, guaranteed=True)
    low, high = (end[place].reshape(matrix.shape) for end in ends)
    rates = ratio(matrix, images)
    gaps = rates - rates.T
    np.fill_diagonal(gaps, np.nan)
    lower = np.nanmax(gaps - np.hypot(rates - low, (high - rates).T))
    upper = np.nanmax(gaps + np.hypot(high - rates, (rates - low).T))
    return Estimate(value, max(float(lower), 0.0), min(float(upper), 1.0))


def target_share(matrix: IntArray, alpha: float = 0.05) -> Estimate:
    """The largest share of the errors that are predicted as one class, with the interval of `best`.

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
    return best(ClassCounts(np.full_like(wrong, wrong.sum()), wrong), alpha)


def _box(counts: ClassCounts, alpha: float) -> tuple[FloatArray, FloatArray]:
    low, high = class_intervals(counts, alpha, simultaneous=True)
    return low[counts.present], high[counts.present]


def _greatest_variance(low: FloatArray, high: FloatArray) -> float:
    """Maximal variance of numbers in intervals with ends (C,); for many classes a tight upper bound of it.

    For every point m the variance is at most mean_c (distance of m to the farther end of class c)^2. The bound is the
    minimum over m, at which m is the mean of the farther ends. (The exact maximum is NP-hard; Ferson et al. 2002.)
    """
    classes = np.arange(len(low))
    if len(low) <= _ALL_CORNERS:
        upper = (np.arange(2 ** len(low))[:, None] >> classes) % 2 == 1
        return float(np.where(upper, high, low).var(axis=1).max())
    below, above = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        farther = np.where(low + high > 2 * middle, high, low)
        below, above = (middle, above) if farther.mean() > middle else (below, middle)
    return float((np.maximum(abs(low - below), abs(high - below)) ** 2).mean())


def _least_variance(low: FloatArray, high: FloatArray) -> float:
    """Minimum over m of mean_c (distance of m to [low_c, high_c])^2: convex in m, quadratic between the ends."""
    if low.max() <= high.min():
        return 0.0
    ends = np.unique(np.concatenate([low, high]))
    best = math.inf
    for left, right in itertools.pairwise(ends):
        middle = (left + right) / 2
        nearest = np.where(high < middle, high, np.where(low > middle, low, np.nan))
        outside = ~np.isnan(nearest)
        if outside.any():
            point = float(np.clip(nearest[outside].mean(), left, right))
            best = min(best, float(((nearest[outside] - point) ** 2).sum()) / len(low))
    return best
