"""Confidence intervals of metrics of all classes: CV, MCD, means, worst class, harmonic means and confusions.

The true class of an extreme is unknown, so that bounds of it need a correction for the number of classes on one side
only (`classwise.stats.intervals.lowest_interval`, `classwise.stats.gap_intervals.discrepancy_bounds`).
"""

from __future__ import annotations

import math

import numpy as np

from classwise.stats.confusion import max_asymmetry
from classwise.stats.counts import ClassCounts, FloatArray, IntArray, ratio
from classwise.stats.gap_intervals import discrepancy_bounds, variance_bounds
from classwise.stats.intervals import (
    Estimate,
    clopper_pearson,
    lowest_interval,
    proportion_interval,
    sidak,
)
from classwise.stats.metrics import (
    class_variance,
    classes_of_share,
    hmw,
    max_class_discrepancy,
    nrr,
    overall_micro,
    worst_class,
    worst_share,
)
from classwise.stats.stratified import class_mean, weighted_mean

FIFTH = 0.2
"""The share of the classes in `worst_fifth`."""


def overall(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The accuracy over all images, with its `proportion_interval`."""
    low, high = proportion_interval(counts.correct.sum(), counts.count.sum(), alpha)
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
    """Maximal class discrepancy (MCD): the highest class accuracy minus the lowest, with `discrepancy_bounds`."""
    return Estimate(max_class_discrepancy(counts.accuracy), *discrepancy_bounds(counts, alpha))


def variance(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """Class-wise variance (CV), a fraction squared, with `variance_bounds`.

    The value is the plug-in CV, which sampling error biases up; the interval is of the CV of the true accuracies.
    """
    return Estimate(class_variance(counts.accuracy), *variance_bounds(counts, alpha))


def beyond_mean(counts: ClassCounts, alpha: float = 0.05) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The accuracy of each class minus the mean over the classes, with intervals.

    It is a weighted sum of the accuracy and the error rates of the other classes minus a constant, with the interval of
    `classwise.stats.stratified.weighted_mean`.

    Returns:
        Differences, lower ends and upper ends: three (C,) arrays, NaN for absent classes.
    """
    ends = np.full((3, counts.num_classes), np.nan)
    present = np.flatnonzero(counts.present)
    own = 1 - 1 / len(present)
    if len(present) == 1:
        ends[:, present] = 0.0
        return ends[0], ends[1], ends[2]
    accuracy, images = counts.accuracy[present], counts.count[present]
    for place, label in enumerate(present):
        mine = np.arange(len(present)) == place
        rates = np.where(mine, accuracy, 1 - accuracy)
        found = weighted_mean(images, rates, rates, np.where(mine, own, 1 / len(present)), alpha)
        ends[:, label] = np.array(found) - own
    return ends[0], ends[1], ends[2]


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
    """The largest abs(C_ij - C_ji) over pairs of classes, from bounds of the rates by Clopper and Pearson.

    The two rates of a pair are of images of two classes, so they are independent. The lower end is the largest of the
    lower bounds of the pairs, which combine the distances to the bounds of the two rates in quadrature (MOVER; Zou and
    Donner 2008) and are corrected for the number of pairs (Sidak). The upper end is the largest difference of an upper
    and a lower bound; it fails only if a bound of the truly largest pair fails, so it needs no such correction.

    Args:
        matrix: (C, C) confusion counts, label by prediction.
        alpha: 1 minus the coverage.

    Returns:
        Fractions; NaN without two classes that have images.
    """
    value, images = max_asymmetry(matrix).gap, matrix.sum(axis=1, keepdims=True)
    if math.isnan(value):
        return Estimate(value, value, value)
    base = int(images.max()) + 1
    cells, place = np.unique(base * images + matrix, return_inverse=True)  # most cells of many classes are equal
    count, correct = np.divmod(cells, base)

    def bounds(level: float) -> list[FloatArray]:
        return [end[place].reshape(matrix.shape) for end in clopper_pearson(correct, count, level)]

    rates, other = ratio(matrix, images), ~np.eye(len(matrix), dtype=np.bool_)
    low, high = bounds(sidak(alpha, math.comb(np.count_nonzero(images), 2)))
    lower = np.nanmax((rates - rates.T - np.hypot(rates - low, (high - rates).T))[other])
    low, high = bounds(2 * sidak(alpha / 2, 2))
    return Estimate(value, max(float(lower), 0.0), float(np.nanmax((high - low.T)[other])))


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
