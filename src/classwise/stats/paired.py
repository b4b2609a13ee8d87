"""Paired comparison of two models (or two attacks) on the same images, per class.

Population P: new images, both models fixed. The results do not cover the variance of retraining; see
`classwise.stats.seeds`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.arguments import Level, checked
from classwise.stats.counts import FloatArray, PairedCounts
from classwise.stats.intervals import Estimate, Interval, clopper_pearson, lowest_interval, sidak, two_sided_z
from classwise.stats.metrics import worst_class

_HALVINGS = 60
"""Bisection steps: an interval of length 2 shrinks below the spacing of float64."""


@checked
def mcnemar(only_first: ArrayLike, only_second: ArrayLike) -> FloatArray:
    """The exact two-sided p-value of McNemar's test, that the discordant images are split evenly.

    Args:
        only_first: number of images that only the first model classifies correctly, any shape.
        only_second: number of images that only the second model classifies correctly, same shape.

    Returns:
        min(1, 2 P(X <= min)) with X binomial(n, 1/2) over the n discordant images; 1 where there are none.
    """
    first, second = np.asarray(only_first, dtype=np.int64), np.asarray(only_second, dtype=np.int64)
    # I_{1/2}(n - k, k + 1) is the binomial distribution function at k.
    fewer, more = np.minimum(first, second), np.maximum(first, second)
    tail = special.betainc(np.maximum(more, 1), fewer + 1, 0.5)
    return np.where(more == 0, 1.0, np.minimum(1.0, 2 * tail))


@checked
def holm(p_values: ArrayLike) -> FloatArray:
    """Holm's (1979) adjusted p-values: rejecting those <= alpha controls the familywise error rate at alpha.

    Args:
        p_values: (m,) p-values; NaN (not tested) remains NaN and is not counted.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]
    adjusted = np.full(p.shape, np.nan)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return adjusted


@checked
def sidak_adjusted(p_values: ArrayLike) -> FloatArray:
    """Sidak's (1967) adjusted p-values: below alpha exactly if the interval at the level `sidak` excludes 0.

    The family-wise error is controlled for independent tests, and for t tests of any correlation.

    Args:
        p_values: (m,) p-values; NaN (not tested) remains NaN and is not counted.
    """
    p = np.asarray(p_values, dtype=np.float64)
    with np.errstate(divide="ignore"):  # p = 1
        return np.asarray(-np.expm1(np.count_nonzero(~np.isnan(p)) * np.log1p(-p)))


@checked
def paired_p_value(only_first: ArrayLike, only_second: ArrayLike) -> FloatArray:
    """Two-sided p-value of no difference: the larger of the exact McNemar test and of the score test.

    The score test is the one that `tango` inverts. It rejects too often if few images are discordant, the exact one
    never does. An interval that agrees with this p-value is `paired_interval`.

    Args:
        only_first: number of images that only the first model classifies correctly, any shape.
        only_second: number of images that only the second model classifies correctly, same shape.
    """
    b, c = np.asarray(only_first, dtype=np.float64), np.asarray(only_second, dtype=np.float64)
    score = np.abs(b - c) / np.sqrt(np.maximum(b + c, 1))
    return np.maximum(mcnemar(only_first, only_second), 2 * special.ndtr(-score))


@checked
def paired_interval(only_first: ArrayLike, only_second: ArrayLike, count: ArrayLike, alpha: Level = 0.05) -> Interval:
    """Interval of a difference of two paired proportions that excludes 0 exactly if `paired_p_value` is below alpha.

    It is Tango's, extended to 0 where the exact test does not reject 0.

    Args:
        only_first: b, (C,) number of images that only the first model classifies correctly.
        only_second: c, (C,) number of images that only the second model classifies correctly.
        count: n, (C,) number of images; where it is 0 both ends are NaN.
        alpha: 1 minus the coverage.
    """
    low, high = tango(only_first, only_second, count, alpha)
    extended = paired_p_value(only_first, only_second) >= alpha
    return Interval(np.where(extended, np.minimum(low, 0), low), np.where(extended, np.maximum(high, 0), high))


@checked
def tango(only_first: ArrayLike, only_second: ArrayLike, count: ArrayLike, alpha: Level = 0.05) -> Interval:
    """The score interval of Tango (1998) for a difference of two paired proportions, first minus second.

    It contains the differences d that a score test with the standard error restricted to d does not reject.

    Args:
        only_first: b, (C,) number of images that only the first model classifies correctly.
        only_second: c, (C,) number of images that only the second model classifies correctly.
        count: n, (C,) number of images; where it is 0 both ends are NaN.
        alpha: 1 minus the coverage.

    Returns:
        Two (C,) arrays in -1 .. 1 that enclose (b - c)/n.
    """
    b, c, n = (np.asarray(values, dtype=np.float64) for values in (only_first, only_second, count))
    z = two_sided_z(alpha)
    # Exchanging the two models turns an upper end into a lower one.
    return Interval(_tango_low(b, c, n, z), -_tango_low(c, b, n, z))


def _tango_low(b: FloatArray, c: FloatArray, n: FloatArray, z: float) -> FloatArray:
    n = np.where(n > 0, n, np.nan)
    rejected, accepted = np.full(b.shape, -1.0), (b - c) / n
    for _ in range(_HALVINGS):
        middle = (rejected + accepted) / 2
        too_low = b - c - n * middle > z * np.sqrt(n * _restricted_variance(middle, b, c, n))
        rejected, accepted = np.where(too_low, middle, rejected), np.where(too_low, accepted, middle)
    return accepted


def _restricted_variance(d: FloatArray, b: FloatArray, c: FloatArray, n: FloatArray) -> FloatArray:
    """Variance of (b - c)/n, times n, restricted to the difference d (Tango 1998)."""
    linear = -b - c + (2 * n - b + c) * d
    root = np.sqrt(np.maximum(linear**2 + 8 * n * c * d * (1 - d), 0))
    only_second = np.maximum((root - linear) / (4 * n), np.maximum(-d, 0))
    variance: FloatArray = np.maximum(2 * only_second + d * (1 - d), 0)
    return variance


class ClassDifferences(NamedTuple):
    """Accuracy of the first model (or mean over seeds) minus that of the second; (C,) arrays, NaN for absent classes.

    Intervals and adjusted p-values are simultaneous over the classes (Sidak): a class interval excludes 0 exactly if
    its adjusted p-value is below alpha.

    Attributes:
        difference: difference of the accuracies, in -1 .. 1.
        low: lower end of the interval.
        high: upper end.
        p_value: two-sided p-value of no difference.
        adjusted: p-values adjusted for the number of classes that are tested: those with images; over several seeds,
            with two images or more.
    """

    difference: FloatArray
    low: FloatArray
    high: FloatArray
    p_value: FloatArray
    adjusted: FloatArray


@checked
def class_differences(pairs: PairedCounts, alpha: Level = 0.05) -> ClassDifferences:
    """Compare two models on the same images, per class, by `paired_interval` and `paired_p_value`.

    Args:
        pairs: paired counts of each class.
        alpha: 1 minus the coverage of the intervals, of all classes together.
    """
    present = pairs.count > 0
    cells = pairs.only_first, pairs.only_second
    low, high = paired_interval(*cells, pairs.count, sidak(alpha, int(present.sum())))
    p_value = np.where(present, paired_p_value(*cells), np.nan)
    return ClassDifferences(pairs.difference, low, high, p_value, sidak_adjusted(p_value))


@checked
def overall_difference(pairs: PairedCounts, alpha: Level = 0.05) -> ClassDifferences:
    """Compare two models over all images; the fields are arrays of one element."""
    cells = (pairs.both, pairs.only_first, pairs.only_second, pairs.neither)
    return class_differences(PairedCounts(*(cell.sum(keepdims=True) for cell in cells)), alpha)


@checked
def difference_of_minima(pairs: PairedCounts, alpha: Level = 0.05) -> Estimate:
    """The worst-class accuracy of the first model minus that of the second.

    The worst classes j of the first model (accuracies p) and k of the second (accuracies q) may differ. Two kinds of
    bounds are combined:

    - p_j - q_j <= min p - min q <= p_k - q_k, from the paired intervals of the classes; tight if the models are
      similar. Only classes that may be the worst are considered for j and k: those with L_c <= min U.
    - interval arithmetic with the intervals of the two minima (`lowest_interval`); tighter if the models differ.

    Only the upper bounds U of the accuracies are corrected for the number of classes. The interval fails only if the
    paired interval of class j or of class k fails, if L_j or L_k fails, or if any U fails: L_j <= p_j <= min U keeps j
    among the classes considered, and the least paired lower end of these classes is at most that of j.

    Args:
        pairs: paired counts of each class.
        alpha: 1 minus the coverage; alpha/2 is spent on the differences and alpha/4 on the worst class of each model.

    Returns:
        The plug-in difference, with the tighter of the two bounds on each side.

    Raises:
        ClasswiseError: if no class has an image.
    """
    value = worst_class(pairs.first.accuracy).accuracy - worst_class(pairs.second.accuracy).accuracy
    paired = tango(pairs.only_first, pairs.only_second, pairs.count, alpha / 2)
    (low_1, high_1), (low_2, high_2) = (lowest_interval(counts, alpha / 4) for counts in (pairs.first, pairs.second))
    lower_1, lower_2 = (
        clopper_pearson(side.correct, side.count, alpha / 4).low for side in (pairs.first, pairs.second)
    )
    low = max(float(paired.low[lower_1 <= high_1].min()), low_1 - high_2)
    high = min(float(paired.high[lower_2 <= high_2].max()), high_1 - low_2)
    return Estimate(value, low, high)
