"""MCD, the highest minus the lowest class accuracy (kdd21 Definition 4.2), and comparisons of it between two models.

Sampling error alone makes equal classes look unequal, so the plug-in MCD is biased up. Every interval is valid if
classes tie: simulated coverages are in docs/results/interval-coverage.md. All results are for new images and fixed
models (population P).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.settings.arguments import Level, checked
from classwise.stats.bounds import BoundedCounts, Bounds
from classwise.stats.counts import ClassCounts, present_accuracies
from classwise.stats.intervals import Estimate, clopper_pearson, difference_of_estimates, ratio_of_estimates, sidak
from classwise.stats.registry import Metric


@checked
def max_class_discrepancy(accuracy: ArrayLike) -> float:
    """MCD: the highest class accuracy (C,) minus the lowest, a fraction (kdd21 Definition 4.2).

    Example:
        >>> from classwise import metrics
        >>> metrics.max_class_discrepancy([0.9, 0.5, 0.1])
        0.8
    """
    return float(np.ptp(present_accuracies(accuracy)))


@checked
def discrepancy_interval(counts: ClassCounts, alpha: Level = 0.05) -> tuple[float, float]:
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


def mcd_estimate(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """Maximal class mcd_estimate (MCD): the highest class accuracy minus the lowest, with `discrepancy_interval`."""
    return Estimate(max_class_discrepancy(counts.accuracy), *discrepancy_interval(counts, alpha))


def mcd_bounds(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the highest minus the lowest class accuracy.

    The upper bound is attained if no image is unplaced; the lower bound is not always attained.
    """
    low, high, whole, certain = counts.scaled
    if len(low) < 2:
        return Bounds(Fraction(0), Fraction(0))
    least = max(
        max((end for end, sure in zip(low, certain, strict=True) if sure), default=0)
        - min((end for end, sure in zip(high, certain, strict=True) if sure), default=0),
        0,
    )
    top, bottom = high.index(max(high)), low.index(min(low))
    if top != bottom:
        most = high[top] - low[bottom]
    else:
        second_high, second_low = (max(high[:top] + high[top + 1 :]), min(low[:bottom] + low[bottom + 1 :]))
        most = max(second_high - low[bottom], high[top] - second_low)
    return Bounds(Fraction(least, whole), Fraction(max(most, 0), whole))


MCD = Metric(
    "mcd",
    lambda counts: max_class_discrepancy(counts.accuracy),
    title="MCD",
    about="maximum class discrepancy, highest minus lowest class accuracy, in percentage points",
    higher_is_better=False,
    rational=True,
    interval=mcd_estimate,
    bounds=mcd_bounds,
)


@checked
def discrepancy_difference(one: ClassCounts, other: ClassCounts, factor: float = 1.0, alpha: Level = 0.05) -> Estimate:
    """MCD of ``one`` minus ``factor`` times MCD of ``other``; the value is the plug-in value.

    Each end combines a lower bound of one MCD with an upper bound of the other, both of `discrepancy_interval` at
    alpha/2 (Bonferroni), so that the images of the two may be the same.

    Args:
        one: counts of C classes.
        other: counts of the same classes.
        factor: positive factor of the second MCD.
        alpha: 1 minus the coverage.

    Returns:
        Fractions.
    """
    return difference_of_estimates(mcd_estimate(one, alpha / 2), mcd_estimate(other, alpha / 2), factor)


@checked
def discrepancy_ratio(one: ClassCounts, other: ClassCounts, alpha: Level = 0.05) -> Estimate:
    """MCD of ``one`` over MCD of ``other``: the ratio of the plug-in values, with a valid interval.

    The ends are ratios of the bounds of `discrepancy_difference`. The upper end is infinite if MCD of ``other`` may be
    0.
    """
    return ratio_of_estimates(mcd_estimate(one, alpha / 2), mcd_estimate(other, alpha / 2))
