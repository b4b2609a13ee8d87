"""CV and MCD without the bias of their plug-in estimates, and comparisons of them between two models.

Sampling error alone makes equal classes look unequal, so the plug-in CV and MCD are biased up, and so are their
ratios. Here CV is corrected for the bias, and every interval is valid if classes tie: simulated coverages are in
docs/results/interval-coverage.md. All results are for new images and fixed models (population P).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from classwise.core.settings.arguments import Level, checked
from classwise.stats.counts import ClassCounts, FloatArray, ratio
from classwise.stats.intervals import Estimate, clopper_pearson, sidak, two_sided_z
from classwise.stats.metrics import max_class_discrepancy

_HALVINGS = 60
"""Bisection steps."""


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
def variance(counts: ClassCounts, alpha: Level = 0.05) -> Estimate:
    """CV of the true class accuracies: `unbiased_variance` with the interval of `variance_bounds`.

    Args:
        counts: counts of C classes.
        alpha: 1 minus the coverage.

    Returns:
        Fractions squared; NaN if a class has a single image.
    """
    value = unbiased_variance(counts)
    if math.isnan(value):
        return Estimate(value, value, value)
    low, high = variance_bounds(counts, alpha)
    return Estimate(value, min(low, value), max(high, value))


@checked
def variance_bounds(counts: ClassCounts, alpha: Level = 0.05) -> tuple[float, float]:
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


@checked
def deviation_difference(one: ClassCounts, other: ClassCounts, factor: float = 1.0, alpha: Level = 0.05) -> Estimate:
    """Standard deviation of the class accuracies of ``one`` minus that of ``other`` times sqrt(``factor``).

    It is above 0 exactly if CV of ``one`` is above ``factor`` times CV of ``other``. The standard deviation is the root
    of CV, with the bias correction and the interval of `variance`, each at alpha/2 (Bonferroni), so that the images of
    the two may be the same.

    Args:
        one: counts of C classes.
        other: counts of the same classes.
        factor: positive factor of the second CV.
        alpha: 1 minus the coverage.

    Returns:
        Fractions.
    """
    first, second = variance(one, alpha / 2), variance(other, alpha / 2)
    first, second = (Estimate(*(math.sqrt(max(end, 0.0)) for end in estimate)) for estimate in (first, second))
    scale = math.sqrt(factor)
    return Estimate(
        first.value - scale * second.value, first.low - scale * second.high, first.high - scale * second.low
    )


@checked
def discrepancy_difference(one: ClassCounts, other: ClassCounts, factor: float = 1.0, alpha: Level = 0.05) -> Estimate:
    """MCD of ``one`` minus ``factor`` times MCD of ``other``; the value is the plug-in value.

    Each end combines a lower bound of one MCD with an upper bound of the other, both of `discrepancy_bounds` at
    alpha/2 (Bonferroni), so that the images of the two may be the same.

    Args:
        one: counts of C classes.
        other: counts of the same classes.
        factor: positive factor of the second MCD.
        alpha: 1 minus the coverage.

    Returns:
        Fractions.
    """
    (low_1, high_1), (low_2, high_2) = (discrepancy_bounds(counts, alpha / 2) for counts in (one, other))
    first, second = (max_class_discrepancy(counts.accuracy) for counts in (one, other))
    return Estimate(first - factor * second, low_1 - factor * high_2, high_1 - factor * low_2)


@checked
def discrepancy_bounds(counts: ClassCounts, alpha: Level = 0.05) -> tuple[float, float]:
    """Interval of MCD of the true class accuracies, from bounds L_c and U_c of Clopper and Pearson.

    Each end fails with probability at most alpha/2:

    - max_c L_c - min_c U_c exceeds MCD only if the interval of some class fails; the intervals are simultaneous.
    - max_c U_c - min_c L_c is below MCD only if U_c fails for the true best class or L_c for the true worst one, so
      these bounds need no correction for the number of classes.

    Args:
        counts: counts of C classes; absent classes are excluded.
        alpha: 1 minus the coverage.

    Returns:
        Lower and upper end, fractions.
    """
    images, correct = counts.count[counts.present], counts.correct[counts.present]
    if len(images) < 2:
        return 0.0, 0.0
    low, high = clopper_pearson(correct, images, sidak(alpha / 2, len(images)))
    least = max(float(low.max() - high.min()), 0.0)
    low, high = clopper_pearson(correct, images, 2 * sidak(alpha / 2, 2))
    return least, float(high.max() - low.min())


@checked
def variance_ratio(one: ClassCounts, other: ClassCounts, alpha: Level = 0.05) -> Estimate:
    """CV of ``one`` over CV of ``other``: the ratio of the unbiased estimates, with a valid interval.

    The ends are ratios of opposite ends of the intervals of `variance` at alpha/2. The upper end is infinite if CV of
    ``other`` may be 0, the ratio if the estimate of that CV is not positive.
    """
    return _ratio(variance(one, alpha / 2), variance(other, alpha / 2))


@checked
def discrepancy_ratio(one: ClassCounts, other: ClassCounts, alpha: Level = 0.05) -> Estimate:
    """MCD of ``one`` over MCD of ``other``: the ratio of the plug-in values, with a valid interval.

    The ends are ratios of the bounds of `discrepancy_difference`. The upper end is infinite if MCD of ``other`` may be
    0.
    """
    first, second = (
        Estimate(max_class_discrepancy(counts.accuracy), *discrepancy_bounds(counts, alpha / 2))
        for counts in (one, other)
    )
    return _ratio(first, second)


def _ratio(one: Estimate, other: Estimate) -> Estimate:
    def over(part: float, whole: float) -> float:
        return max(part, 0.0) / whole if whole > 0 else math.inf if not math.isnan(whole) else math.nan

    return Estimate(over(one.value, other.value), over(one.low, other.high), over(one.high, other.low))
