"""Confidence intervals for class accuracies, for new images of the same classes and a fixed model (population P)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.stats.counts import ClassCounts, FloatArray, ratio

MIN_NORMAL_VARIANCE = 50.0
"""Below this n p (1-p), `proportion_interval` is that of Clopper and Pearson."""
MIN_NORMAL_LEVEL = 0.01
"""Below this alpha, `proportion_interval` is that of Clopper and Pearson."""


class Interval(NamedTuple):
    """Lower and upper ends of the intervals: (C,) arrays."""

    low: FloatArray
    high: FloatArray


class Estimate(NamedTuple):
    """A number with the lower and upper end of its interval."""

    value: float
    low: float
    high: float


@checked
def alpha_of(confidence: Level) -> float:
    """1 - ``confidence``, without its rounding error: exactly 0.05 for 0.95.

    Raises:
        ClasswiseError: unless the confidence is between 0 and 1 (exclusive).

    Example:
        >>> alpha_of(0.95)
        0.05
    """
    return round(1 - confidence, 15)


@checked
def two_sided_z(alpha: Level) -> float:
    """The normal quantile Phi^-1(1 - alpha/2): 1.96 for alpha = 0.05."""
    return float(special.ndtri(1 - alpha / 2))


@checked
def sidak(alpha: Level, tests: int) -> float:
    """The level of each of several independent intervals for simultaneous coverage 1 - ``alpha``.

    Sidak (1967): 1 - (1 - alpha)^(1/tests).
    """
    return float(-np.expm1(np.log1p(-alpha) / max(tests, 1)))


@checked
def student(values: ArrayLike, alpha: Level = 0.05) -> Estimate:
    """The mean of (n,) values with Student's t interval (1908); its ends are NaN for fewer than two values."""
    sample = np.asarray(values, dtype=np.float64)
    degrees = len(sample) - 1
    mean, half_width = float(sample.mean()), float("nan")
    if degrees > 0:
        quantile = special.stdtrit(degrees, 1 - alpha / 2)
        half_width = float(quantile * sample.std(ddof=1) / np.sqrt(len(sample)))
    return Estimate(mean, mean - half_width, mean + half_width)


@checked
def wilson(correct: ArrayLike, count: ArrayLike, alpha: Level = 0.05) -> Interval:
    """Wilson's score interval (1927) of a binomial proportion.

    Args:
        correct: correct predictions, any shape.
        count: images, same shape; where it is 0 both ends are NaN.
        alpha: 1 minus the coverage, which is attained on average over p, not for each p.
    """
    p, n, z = ratio(correct, count), np.asarray(count, dtype=np.float64), two_sided_z(alpha)
    n = np.where(n > 0, n, np.nan)
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    # At p = 0 and p = 1 the outer end is exactly 0 and 1, up to rounding.
    return Interval(np.where(p == 0, 0 * n, centre - half), np.where(p == 1, 1 + 0 * n, centre + half))


@checked
def clopper_pearson(correct: ArrayLike, count: ArrayLike, alpha: Level = 0.05) -> Interval:
    """The exact interval of Clopper and Pearson (1934), whose coverage is at least 1 - alpha for every proportion.

    Args:
        correct: correct predictions, any shape.
        count: images, same shape; where it is 0 both ends are NaN.
        alpha: 1 minus the coverage.
    """
    k, n = (np.asarray(values, dtype=np.float64) for values in (correct, count))
    n = np.where(n > 0, n, np.nan)
    # At the two ends, which are 0 and 1 by definition, 1 is a valid argument of the beta distribution.
    low = np.where(k > 0, special.betaincinv(np.where(k > 0, k, 1), n - k + 1, alpha / 2), 0 * n)
    high = np.where(k < n, special.betaincinv(k + 1, np.where(k < n, n - k, 1), 1 - alpha / 2), 1 + 0 * n)
    return Interval(low, high)


@checked
def proportion_interval(correct: ArrayLike, count: ArrayLike, alpha: Level = 0.05) -> Interval:
    """The interval of a binomial proportion such as an accuracy: Wilson's where it is accurate, else the exact one.

    Clopper and Pearson's interval where n p (1-p) < `MIN_NORMAL_VARIANCE` or alpha < `MIN_NORMAL_LEVEL`, Wilson's
    elsewhere. The least coverage over all proportions and 1 to 10,000 images is 94.1 % for alpha = 0.05; with Wilson's
    alone it is 79 %. Both ends increase with every correct prediction.

    Args:
        correct: correct predictions, any shape; means over several predictions may be fractional.
        count: images, same shape; where it is 0 both ends are NaN.
        alpha: 1 minus the coverage.

    Example:
        >>> low, high = proportion_interval([0, 460], [100, 1000])
        >>> low.round(3).tolist(), high.round(3).tolist()
        ([0.0, 0.429], [0.036, 0.491])
    """
    proportion = ratio(correct, count)
    exact = clopper_pearson(correct, count, alpha)
    if alpha < MIN_NORMAL_LEVEL:
        return exact
    score = wilson(correct, count, alpha)
    normal = np.asarray(count) * proportion * (1 - proportion) >= MIN_NORMAL_VARIANCE
    return Interval(*(np.where(normal, near, end) for near, end in zip(score, exact, strict=True)))


def proportion_estimate(correct: float, count: float, alpha: float = 0.05) -> Estimate:
    """One proportion with its `proportion_interval`; NaN without images."""
    return Estimate(*(float(number) for number in (ratio(correct, count), *proportion_interval(correct, count, alpha))))


@checked
def lowest_interval(counts: ClassCounts, alpha: Level = 0.05, *, number: int = 1) -> tuple[float, float]:
    """Confidence interval of the lowest class accuracy, or of the mean of the ``number`` lowest class accuracies.

    The ends are the means of the m = ``number`` lowest bounds L_c and the m lowest bounds U_c of Clopper and Pearson.
    Each end fails with probability at most alpha/2, for any true accuracies and numbers of images:

    - The lower end is at most the mean of L_c over the truly lowest m classes. It is too high only if the bound of one
      of these m classes fails. L_c is therefore corrected for m classes: for the worst class, not at all.
    - The upper end is too low if the bound of any class fails. U_c is therefore corrected for all classes (Sidak).

    Wilson's bounds would not do: at the small error level of many classes, and at accuracies near 1, his upper bounds
    fail far more often than the level. Coverages and widths are in docs/results/interval-coverage.md. A statement about
    *which* class is the worst needs other corrections; see `classwise.stats.worst_class.possibly_worst`.

    Args:
        counts: counts of C classes; absent classes are excluded.
        alpha: 1 minus the coverage of the interval.
        number: number of lowest classes, at least 1.

    Returns:
        Lower and upper end, fractions.

    Raises:
        ClasswiseError: if no class has an image.

    Example:
        >>> from classwise.stats.counts import ClassCounts
        >>> low, high = lowest_interval(ClassCounts(count=[100, 100, 100], correct=[30, 50, 80]))
        >>> round(low, 3), round(high, 3)
        (0.212, 0.421)
    """
    images, correct = counts.count[counts.present], counts.correct[counts.present]
    if not images.size:
        raise ClasswiseError("counts: no class has an image")
    lower = clopper_pearson(correct, images, 2 * sidak(alpha / 2, number)).low
    upper = clopper_pearson(correct, images, 2 * sidak(alpha / 2, len(images))).high
    return float(np.sort(lower)[:number].mean()), float(np.sort(upper)[:number].mean())


@checked
def class_intervals(counts: ClassCounts, alpha: Level = 0.05, *, simultaneous: bool = False) -> Interval:
    """Confidence interval for the accuracy of each class.

    Args:
        counts: counts of C classes.
        alpha: 1 minus the coverage.
        simultaneous: cover all classes simultaneously, by Clopper and Pearson's intervals (Sidak over the classes that
            have images); otherwise the intervals are those of `proportion_interval`.

    Returns:
        Two (C,) arrays of fractions; NaN for absent classes.
    """
    if simultaneous:
        return clopper_pearson(counts.correct, counts.count, sidak(alpha, int(counts.present.sum())))
    return proportion_interval(counts.correct, counts.count, alpha)


def difference_of_estimates(one: Estimate, other: Estimate, factor: float = 1.0) -> Estimate:
    """``one`` minus ``factor`` times ``other``, with the differences of opposite ends."""
    return Estimate(one.value - factor * other.value, one.low - factor * other.high, one.high - factor * other.low)


def ratio_of_estimates(one: Estimate, other: Estimate) -> Estimate:
    """The ratio of two estimates of numbers of at least 0, with the ratios of opposite ends.

    The upper end is infinite if the other number may be 0.
    """

    def over(part: float, whole: float) -> float:
        if whole > 0:
            return max(part, 0.0) / whole
        return math.nan if math.isnan(whole) else math.inf

    return Estimate(over(one.value, other.value), over(one.low, other.high), over(one.high, other.low))
