"""Paired comparison of two models (or two attacks) on the same images, per class.

Population P: new images, both models fixed. The results do not cover the variance of retraining; see
`classwise.stats.seeds`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.stats.counts import FloatArray, PairedCounts
from classwise.stats.gaffke import lower_bounds
from classwise.stats.intervals import Estimate, Interval, sidak, two_sided_z
from classwise.stats.sample_splitting import HALVINGS
from classwise.stats.worst_difference import lowest_difference

_CHANGES = np.array([-1.0, 0.0, 1.0])
_BESIDE = 1e-6
"""An interval of a difference that is tested to be positive has at least this lower end."""
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

    The family-wise error is controlled for independent tests (classes have different images).

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

    It is Tango's, extended to Gaffke's bounds (`classwise.stats.gaffke`): if only one model is better on some images,
    the difference is skewed, and Tango's interval fails up to four times as often as the small levels of many classes.
    It contains 0 where the exact test does not reject 0, and ends beside 0 where that test rejects it.

    Args:
        only_first: b, (C,) number of images that only the first model classifies correctly.
        only_second: c, (C,) number of images that only the second model classifies correctly.
        count: n, (C,) number of images; where it is 0 both ends are NaN.
        alpha: 1 minus the coverage.
    """
    b, c, n = (np.asarray(values, dtype=np.float64) for values in (only_first, only_second, count))
    cells = np.stack([c, n - b - c, b], axis=-1)
    below = lower_bounds(_CHANGES, cells.reshape(-1, 3), alpha / 2).reshape(b.shape)
    above = -lower_bounds(_CHANGES, cells[..., ::-1].reshape(-1, 3), alpha / 2).reshape(b.shape)
    score = tango(only_first, only_second, count, alpha)
    low, high = np.minimum(score.low, below), np.maximum(score.high, above)
    rejected = paired_p_value(only_first, only_second) < alpha
    better, worse = rejected & (b > c), rejected & (b < c)
    low = np.where(better, np.maximum(low, _BESIDE), np.where(worse, low, np.minimum(low, 0)))
    high = np.where(worse, np.minimum(high, -_BESIDE), np.where(better, high, np.maximum(high, 0)))
    return Interval(low, high)


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
        adjusted: p-values adjusted for the number of classes that are tested: those with images.
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

    The worst classes of the two models may differ. The upper end considers every class c that could be the worst of the
    second model: there the first model is bounded above by classes that one half of the images chooses and the other
    half evaluates, or by class c itself, and the second model is bounded below by class c. See
    `classwise.stats.seeds.worst_difference_over_seeds`, which this is for one run each. There is no correction for the
    number of classes. A twentieth of alpha is spent on a second bound, which is narrow if the models agree on nearly
    all images: the difference is at most that of the accuracies in the second model's worst class, and at least that in
    the first model's. The halves are drawn from the counts with a fixed seed.

    Args:
        pairs: paired counts of each class.
        alpha: 1 minus the coverage.

    Returns:
        The plug-in difference with its interval.

    Raises:
        ClasswiseError: if no class has an image.

    Example:
        >>> pairs = PairedCounts(both=[30, 60], only_first=[20, 10], only_second=[5, 10], neither=[45, 20])
        >>> found = difference_of_minima(pairs)
        >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
        (0.15, 0.05, 0.25)
    """
    if not pairs.count.any():
        raise ClasswiseError("pairs: no class has an image")
    cells = np.stack([pairs.both, pairs.only_first, pairs.only_second, pairs.neither], axis=1)
    first, second = (np.tile(right, len(cells)).astype(np.bool_) for right in ([1, 1, 0, 0], [1, 0, 1, 0]))
    images = cells.ravel()
    index = np.repeat(np.repeat(np.arange(len(cells)), 4), images)
    runs_a, runs_b = np.repeat(first, images)[None], np.repeat(second, images)[None]
    found, _ = lowest_difference(runs_a, runs_b, index, alpha, paired=False, halvings=HALVINGS, seed=0)
    return found
