"""CV, the variance of the class accuracies (kdd21 Definition 4.1), without the bias of its plug-in estimate.

Sampling error alone makes equal classes look unequal, so the plug-in CV is biased up, and so are ratios of it. Every
interval is valid if classes tie: simulated coverages are in docs/results/interval-coverage.md. All results are for new
images and fixed models (population P).
"""

from __future__ import annotations

import bisect
import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.settings.arguments import Level, checked
from classwise.stats.bounds import BoundedCounts, Bounds
from classwise.stats.counts import ClassCounts, FloatArray, present_accuracies, ratio
from classwise.stats.intervals import Estimate, difference_of_estimates, ratio_of_estimates, two_sided_z
from classwise.stats.registry import Metric

_HALVINGS = 60
"""Bisection steps."""


@checked
def class_variance(accuracy: ArrayLike) -> float:
    """CV: the population variance of the class accuracies (kdd21 Definition 4.1).

    Args:
        accuracy: (C,) fractions.

    Returns:
        (1/C) sum_c (a_c - mean)^2, a fraction squared; times 10^4 it is in percent squared.

    Example:
        >>> from classwise import metrics
        >>> round(1e4 * metrics.class_variance([0.9, 0.5, 0.1]), 2)
        1066.67
    """
    return float(present_accuracies(accuracy).var())


def cv_estimate(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """Class-wise variance (CV), a fraction squared, with `variance_interval`.

    The value is the plug-in CV, which sampling error biases up; the interval is of the CV of the true accuracies.
    """
    return Estimate(class_variance(counts.accuracy), *variance_interval(counts, alpha))


@checked
def variance_interval(counts: ClassCounts, alpha: Level = 0.05) -> tuple[float, float]:
    """Interval of CV of the true class accuracies; it contains the plug-in CV.

    Let Q = sum_c (a_c - mean)^2, with E[Q] = C CV + m. Given CV, Q is approximated by t times a noncentral chi-square
    variable with m/t degrees of freedom, which has mean C CV + m and variance 2 t m + 4 t C CV (after Patnaik 1949).
    The lower end inverts this distribution; the upper end inverts a score test, which is wider for few classes. The
    scale t is the larger of that of the sampling part, s2/s1, and that of the deviations, sum_c (a_c - mean)^2 v_c / Q,
    where s1 and s2 are the traces of P diag(v) and of its square, and P subtracts the mean. The variances v_c are at
    least those at the centres of Wilson's intervals, so that they are positive at accuracies 0 and 1, and 1/4 for a
    single image. At the lower end m = s1; at the upper end m is the unbiased estimate, 0 for a single image.

    Args:
        counts: counts of C classes; absent classes are excluded.
        alpha: 1 minus the coverage.

    Returns:
        Lower and upper end, fractions squared.
    """
    accuracy, sampling = _accuracies(counts)
    classes, z = len(accuracy), two_sided_z(alpha)
    if classes == 1:
        return 0.0, 0.0
    images, correct = counts.count[counts.present], counts.correct[counts.present]
    centre = (correct + z**2 / 2) / (images + z**2)
    error = np.where(images > 1, np.fmax(sampling, centre * (1 - centre) / images), 0.25)
    squares = (accuracy - accuracy.mean()) ** 2
    total, mean = float(squares.sum()), (1 - 1 / classes) * float(np.nansum(sampling))
    first = (1 - 1 / classes) * float(error.sum())
    second = (1 - 2 / classes) * float((error**2).sum()) + (float(error.sum()) / classes) ** 2
    scale = max(second / first, float(squares @ error) / total if total > 0 else 0.0)
    low = scale * _least_noncentrality(total / scale, first / scale, alpha / 2)
    middle = total - mean + 2 * scale * z**2
    high = middle + z * math.sqrt(max(4 * scale * (total - mean + scale * z**2) + 2 * second, 0.0))
    plug_in = total / classes
    return min(low / classes, plug_in), min(max(high / classes, plug_in), 0.25)


def _accuracies(counts: ClassCounts) -> tuple[FloatArray, FloatArray]:
    """Accuracies of the classes with images, and unbiased estimates of their variances; NaN for a single image."""
    accuracy, images = counts.accuracy[counts.present], counts.count[counts.present]
    return accuracy, ratio(accuracy * (1 - accuracy), images - 1)


def _least_noncentrality(x: float, degrees: float, tail: float) -> float:
    """The least noncentrality, or 0, at which a chi-square variable is at least ``x`` with probability ``tail``."""
    low, high = 0.0, x
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if special.chndtr(x, degrees, middle) > 1 - tail else (low, middle)
    return low


def cv_bounds(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the cv_bounds of the class accuracies.

    They are valid for every completion and not always attained. The lower bound is the least cv_bounds of real numbers
    between the bounds l_c and u_c of the classes. The upper bound is min_t mean_c max((l_c - t)^2, (u_c - t)^2): the
    mean square about any t is at least the cv_bounds.
    """
    if counts.unplaced:
        return Bounds(Fraction(0), Fraction(1, 4))  # the variance of numbers in [0, 1]
    low, high, whole, _ = counts.scaled
    classes = len(low)
    ends = list(zip(low, high, strict=True))

    # The mean square distance of t to the intervals [l, u] is least where t is the mean of the nearest points. That is
    # between two neighbouring ends of intervals, where each point is either the end of its interval, or t itself.
    def excess(t: int) -> int:
        return classes * t - sum(min(max(t, lower), upper) for lower, upper in ends)

    breaks = sorted({*low, *high})
    left = breaks[bisect.bisect_right(breaks, 0, key=excess) - 1]
    fixed = [upper if upper <= left else lower for lower, upper in ends if not lower <= left < upper]
    least = Fraction(len(fixed) * sum(x * x for x in fixed) - sum(fixed) ** 2, len(fixed)) if fixed else Fraction(0)

    # The mean square distance of t to the farther ends is least where t is their mean, or halfway between two ends.
    farther, passed = sum(high), 0
    for lower, upper in sorted(ends, key=sum):
        if 2 * farther <= classes * (lower + upper):
            break
        farther, passed = farther + lower - upper, lower + upper
    twice = max(Fraction(2 * farther, classes), Fraction(passed))
    top, bottom = twice.numerator, 2 * twice.denominator
    most = sum(max(abs(bottom * lower - top), abs(bottom * upper - top)) ** 2 for lower, upper in ends)
    scale = classes * whole**2
    return Bounds(least / scale, Fraction(most, bottom**2 * scale))


CV = Metric(
    "cv",
    lambda counts: class_variance(counts.accuracy),
    title="class-wise variance",
    about="variance of the class accuracies (CV in the literature), in percent squared",
    unit="fraction squared",
    higher_is_better=False,
    rational=True,
    interval=cv_estimate,
    bounds=cv_bounds,
)


@checked
def unbiased_variance(counts: ClassCounts) -> float:
    """CV of the true class accuracies, estimated without bias; negative for about half of all samples of equal classes.

    With independent classes, E[plug-in CV] = CV + (1 - 1/C) mean_c p_c (1 - p_c) / n_c, and a_c (1 - a_c) / (n_c - 1)
    is an unbiased estimate of p_c (1 - p_c) / n_c. The plug-in CV minus this sampling part is therefore unbiased.

    Args:
        counts: counts of C classes; absent classes are excluded.

    Returns:
        A fraction squared; NaN if a class has a single image, from which its variance cannot be estimated.

    Example:
        >>> from classwise.stats.counts import ClassCounts
        >>> equal = ClassCounts(count=[10, 10], correct=[4, 6])
        >>> round(float(equal.accuracy.var()), 4), round(unbiased_variance(equal), 4)
        (0.01, -0.0033)
    """
    accuracy, sampling = _accuracies(counts)
    return float(accuracy.var() - (1 - 1 / len(accuracy)) * sampling.mean())


@checked
def unbiased_estimate(counts: ClassCounts, alpha: Level = 0.05) -> Estimate:
    """CV of the true class accuracies: `unbiased_variance` with the interval of `variance_interval`.

    Args:
        counts: counts of C classes.
        alpha: 1 minus the coverage.

    Returns:
        Fractions squared; NaN if a class has a single image.
    """
    value = unbiased_variance(counts)
    if math.isnan(value):
        return Estimate(value, value, value)
    low, high = variance_interval(counts, alpha)
    return Estimate(value, min(low, value), max(high, value))


@checked
def deviation_difference(one: ClassCounts, other: ClassCounts, factor: float = 1.0, alpha: Level = 0.05) -> Estimate:
    """Standard deviation of the class accuracies of ``one`` minus that of ``other`` times sqrt(``factor``).

    It is above 0 exactly if CV of ``one`` is above ``factor`` times CV of ``other``. The standard deviation is the root
    of CV, with the bias correction and the interval of `unbiased_estimate`, each at alpha/2 (Bonferroni), so that the
    images of the two may be the same.

    Args:
        one: counts of C classes.
        other: counts of the same classes.
        factor: positive factor of the second CV.
        alpha: 1 minus the coverage.

    Returns:
        Fractions.
    """
    first, second = unbiased_estimate(one, alpha / 2), unbiased_estimate(other, alpha / 2)
    first, second = (Estimate(*(math.sqrt(max(end, 0.0)) for end in estimate)) for estimate in (first, second))
    return difference_of_estimates(first, second, math.sqrt(factor))


@checked
def variance_ratio(one: ClassCounts, other: ClassCounts, alpha: Level = 0.05) -> Estimate:
    """CV of ``one`` over CV of ``other``: the ratio of the unbiased estimates, with a valid interval.

    The ends are ratios of opposite ends of the intervals of `unbiased_estimate` at alpha/2. The upper end is infinite
    if CV of ``other`` may be 0, the ratio if the estimate of that CV is not positive.
    """
    return ratio_of_estimates(unbiased_estimate(one, alpha / 2), unbiased_estimate(other, alpha / 2))
