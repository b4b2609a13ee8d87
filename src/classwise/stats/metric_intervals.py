"""Intervals of the metrics of all class accuracies: CV, MCD, means, worst class and harmonic means.

Simultaneous intervals of the classes are a box that holds all true class accuracies with probability 1 - alpha. The
least and the greatest value that a metric takes in the box bound it with at least that probability.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate, class_intervals, score_interval, sidak, two_sided_z, wilson
from classwise.stats.metrics import (
    class_variance,
    hmw,
    max_class_discrepancy,
    nrr,
    overall_macro,
    overall_micro,
    worst_class,
    worst_share,
)

_ALL_CORNERS = 10
"""Up to so many classes, all corners of a box are tried."""
_HALVINGS = 50


def overall(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The share of all images that are right, with Wilson's interval."""
    low, high = wilson(counts.correct.sum(), counts.count.sum(), alpha)
    return Estimate(overall_micro(counts), float(low), float(high))


def macro(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The mean of the class accuracies, with a score interval.

    The count is that of a simple share with the same variance, (1/C^2) sum_c a_c (1 - a_c) / n_c.
    """
    accuracy, images = counts.accuracy[counts.present], counts.count[counts.present]
    mean = overall_macro(counts.accuracy)
    variance = float((accuracy * (1 - accuracy) / images).sum()) / len(images) ** 2
    effective = mean * (1 - mean) / variance if variance > 0 else float(images.sum())
    low, high = score_interval(mean, effective, two_sided_z(alpha))
    return Estimate(mean, float(low), float(high))


def worst(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The accuracy of the lowest class, whichever it is."""
    low, high = _box(counts, alpha)
    return Estimate(worst_class(counts.accuracy).accuracy, float(low.min()), float(high.min()))


def worst_label(counts: ClassCounts) -> int:
    """The lowest class on these images."""
    return worst_class(counts.accuracy).label


def worst_fifth(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The mean accuracy of the lowest fifth of the classes: it grows with every class accuracy."""
    low, high = _box(counts, alpha)
    return Estimate(worst_share(counts.accuracy, 0.2), worst_share(low, 0.2), worst_share(high, 0.2))


def discrepancy(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """MCD: the highest class accuracy minus the lowest."""
    low, high = _box(counts, alpha)
    least = max(float(low.max() - high.min()), 0.0)
    return Estimate(max_class_discrepancy(counts.accuracy), least, float(high.max() - low.min()))


def variance(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """CV, a fraction squared.

    The greatest variance in a box is at a corner. It is searched among all corners of up to `_ALL_CORNERS` classes, and
    bounded from above for more. The least variance has every class as near to one common point as its interval allows.
    """
    low, high = _box(counts, alpha)
    return Estimate(class_variance(counts.accuracy), _least_variance(low, high), _greatest_variance(low, high))


def beyond_mean(counts: ClassCounts, alpha: float = 0.05) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Each class's accuracy minus the mean of all classes, with an interval: three (C,) arrays, NaN for absent classes.

    The difference is a weighted sum of independent shares; its interval takes the distances to the ends of theirs,
    weighted and squared, where each pulls the sum that way (Zou and Donner 2008). So a class at 0 or 1 is not taken for
    one without error, as resampling would.
    """
    accuracy, present = counts.accuracy, counts.present
    low, high = class_intervals(counts, alpha)
    below, above = ((np.where(present, gap, 0.0) ** 2) for gap in (accuracy - low, high - accuracy))
    number = int(present.sum())
    own, other = (1 - 1 / number) ** 2, 1 / number**2
    down = np.sqrt(own * below + other * (above.sum() - above))
    up = np.sqrt(own * above + other * (below.sum() - below))
    value = accuracy - overall_macro(accuracy)
    return value, value - down, value + up


def clean_and_robust(clean: ClassCounts, robust: ClassCounts, alpha: float = 0.05) -> Estimate:
    """NRR: the harmonic mean of clean and robust overall accuracy, from intervals that hold together."""
    level = sidak(alpha, 2)
    first, second = overall(clean, level), overall(robust, level)
    return Estimate(*(nrr(a, b) for a, b in zip(first, second, strict=True)))


def overall_and_worst(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """HMW: the harmonic mean of overall and worst-class accuracy, from intervals that hold together."""
    level = sidak(alpha, 2)
    first, second = overall(counts, level), worst(counts, level)
    return Estimate(*(hmw(a, b) for a, b in zip(first, second, strict=True)))


def _box(counts: ClassCounts, alpha: float) -> tuple[FloatArray, FloatArray]:
    low, high = class_intervals(counts, alpha, simultaneous=True)
    return low[counts.present], high[counts.present]


def _greatest_variance(low: FloatArray, high: FloatArray) -> float:
    """The greatest variance of numbers between ends (C,), or for many classes a bound that is hardly above it.

    For every point m the variance is at most mean_c (distance of m to the farther end of class c)^2. The bound is the
    least of these: there, m is the mean of the farther ends. (The exact maximum is NP-hard; Ferson et al. 2002.)
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
    """Min over m of mean_c (distance of m to [low_c, high_c])^2: convex in m, quadratic between the ends."""
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
