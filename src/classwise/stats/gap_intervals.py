"""CV and MCD without the bias of their plug-in estimates, and comparisons of them between two models.

Sampling error alone makes equal classes look unequal, so the plug-in CV and MCD are biased up, and so are their
ratios. Here CV is corrected for the bias, and every interval is valid if classes tie: simulated coverages are in
docs/results/interval-coverage.md. All results are for new images and fixed models (population P).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from classwise.core.arguments import Level, checked
from classwise.stats.counts import ClassCounts, FloatArray, ratio
from classwise.stats.intervals import Estimate, class_intervals, sidak, two_sided_z
from classwise.stats.metrics import max_class_discrepancy

_HALVINGS = 60
"""Bisection steps."""
_LEAST_DEGREES = 1e-3
"""Degrees of freedom if all estimated variances are 0."""


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
    """CV of the true class accuracies: `unbiased_variance` with an interval.

    Let Q = sum_c (a_c - mean)^2, with E[Q] = C CV + m. Given CV, Q is approximated by t times a noncentral chi-square
    variable with m/t degrees of freedom, which has mean C CV + m and variance 2 t m + 4 t C CV (after Patnaik 1949).
    The lower end inverts this distribution; the upper end inverts a score test, which is wider for few classes. The
    scale t is the larger of that of the sampling part, s2/s1, and that of the deviations, sum_c (a_c - mean)^2 v_c / Q,
    where s1 and s2 are the traces of P diag(v) and of its square, and P subtracts the mean. The variances v_c are at
    the centres of Wilson's intervals, so that they are positive at accuracies 0 and 1.

    Args:
        counts: counts of C classes; absent classes are excluded.
        alpha: 1 minus the coverage.

    Returns:
        Fractions squared; NaN if a class has a single image.
    """
    accuracy, sampling = _accuracies(counts)
    classes, z = len(accuracy), two_sided_z(alpha)
    value = unbiased_variance(counts)
    if math.isnan(value) or classes == 1:
        return Estimate(value, value, value)
    images, correct = counts.count[counts.present], counts.correct[counts.present]
    centre = (correct + z**2 / 2) / (images + z**2)
    error = np.maximum(sampling, centre * (1 - centre) / images)
    squares = (accuracy - accuracy.mean()) ** 2
    total, mean = float(squares.sum()), (1 - 1 / classes) * float(sampling.sum())
    first = (1 - 1 / classes) * float(error.sum())
    second = (1 - 2 / classes) * float((error**2).sum()) + (float(error.sum()) / classes) ** 2
    scale = max(second / first, float(squares @ error) / total if total > 0 else 0.0)
    low = scale * _least_noncentrality(total / scale, max(mean / scale, _LEAST_DEGREES), alpha / 2)
    middle = total - mean + 2 * scale * z**2
    high = middle + z * math.sqrt(max(4 * scale * (total - mean + scale * z**2) + 2 * second, 0.0))
    return Estimate(value, min(low / classes, value), max(high / classes, value))


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

    Each end combines a lower bound of one MCD with an upper bound of the other, each with error probability alpha/4, so
    that the images of the two may be the same (Bonferroni). The bounds:

    - The class intervals are those of Clopper and Pearson, so that every error probability is exact or smaller.
    - max_c L_c - min_c U_c exceeds MCD only if the interval of some class fails; the intervals are simultaneous.
    - max_c U_c - min_c L_c is below MCD only if U_c fails for the true best class or L_c for the true worst one, so
      these ends need no correction for the number of classes.

    Args:
        one: counts of C classes.
        other: counts of the same classes.
        factor: positive factor of the second MCD.
        alpha: 1 minus the coverage.

    Returns:
        Fractions.
    """
    (low_1, high_1), (low_2, high_2) = (_discrepancy_bounds(counts, alpha / 4) for counts in (one, other))
    first, second = (max_class_discrepancy(counts.accuracy) for counts in (one, other))
    return Estimate(first - factor * second, low_1 - factor * high_2, high_1 - factor * low_2)


def _discrepancy_bounds(counts: ClassCounts, error: float) -> tuple[float, float]:
    """Lower and upper bound of MCD, each of which fails with probability at most ``error``."""
    low, high = class_intervals(counts, error, simultaneous=True, guaranteed=True)
    least = max(float(np.nanmax(low) - np.nanmin(high)), 0.0)
    low, high = class_intervals(counts, 2 * sidak(error, 2), guaranteed=True)
    return least, float(np.nanmax(high) - np.nanmin(low)) if int(counts.present.sum()) > 1 else 0.0


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
        Estimate(max_class_discrepancy(counts.accuracy), *_discrepancy_bounds(counts, alpha / 4))
        for counts in (one, other)
    )
    return _ratio(first, second)


def _ratio(one: Estimate, other: Estimate) -> Estimate:
    def over(part: float, whole: float) -> float:
        return max(part, 0.0) / whole if whole > 0 else math.inf if not math.isnan(whole) else math.nan

    return Estimate(over(one.value, other.value), over(one.low, other.high), over(one.high, other.low))
