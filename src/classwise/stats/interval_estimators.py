"""Interval estimators: functions from an error level to an estimate with its interval, and arithmetic with them.

Some plug-in estimates are biased: the widest, the worst, the best of several. The intervals here hold for them, too,
and are wide therefore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate, two_sided_z

IntervalEstimator = Callable[[float], Estimate]
"""From an error level to an estimate with its interval."""
ALPHA = 0.05
"""The error level of intervals that are given without one."""


def exactly(value: float) -> IntervalEstimator:
    """A number that is known without error, at any level."""

    def at(level: float) -> Estimate:
        del level
        return Estimate(value, value, value)

    return at


def interval(estimate: Estimate, scale: float = 1.0) -> IntervalEstimator:
    """The estimator that extends an estimate with its 95 % interval to any level; times ``scale`` (100 for points).

    Value +- r: r is the larger of the two distances to the interval's ends, scaled to the level by the normal
    quantiles. An interval of no width says that no resample differed, not that nothing is uncertain: it is NaN.
    """
    value = scale * estimate.value
    reach = abs(scale) * max(estimate.value - estimate.low, estimate.high - estimate.value)
    reach = reach / two_sided_z(ALPHA) if reach > 0 else math.nan

    def at(level: float) -> Estimate:
        return Estimate(value, value - two_sided_z(level) * reach, value + two_sided_z(level) * reach)

    return at


def difference(one: Estimate, other: Estimate) -> Estimate:
    """One minus the other, their errors taken as independent: safe for what shares its images."""
    reach = math.hypot(*(max(each.value - each.low, each.high - each.value) for each in (one, other)))
    return Estimate(one.value - other.value, one.value - other.value - reach, one.value - other.value + reach)


def widest(counts: ClassCounts, beyond: float = 0.0) -> IntervalEstimator:
    """MCD in points minus some, between intervals that hold for all classes at once: noise lifts no lower end above 0.

    Args:
        counts: of the classes.
        beyond: points.
    """

    def at(level: float) -> Estimate:
        return Estimate(*(100 * end - beyond for end in metric_intervals.discrepancy(counts, level)))

    return at


def wider(one: ClassCounts, other: ClassCounts) -> IntervalEstimator:
    """MCD of one minus that of the other, in points."""
    return minus(widest(one), widest(other))


def minus(one: IntervalEstimator, other: IntervalEstimator) -> IntervalEstimator:
    """One number minus another: the ends of their intervals, each at half the level, subtracted crosswise."""

    def at(level: float) -> Estimate:
        first, second = one(level / 2), other(level / 2)
        return Estimate(first.value - second.value, first.low - second.high, first.high - second.low)

    return at


def plus(one: IntervalEstimator, points: float) -> IntervalEstimator:
    """A number and a constant."""
    return lambda level: Estimate(*(end + points for end in one(level)))


def negative(one: IntervalEstimator) -> IntervalEstimator:
    """Minus a number."""

    def at(level: float) -> Estimate:
        found = one(level)
        return Estimate(-found.value, -found.high, -found.low)

    return at


def greatest(parts: Sequence[IntervalEstimator]) -> IntervalEstimator:
    """The greatest of several numbers, each with its share of the level: choosing it among them costs nothing more."""

    def at(level: float) -> Estimate:
        each = [part(level / len(parts)) for part in parts]
        return Estimate(*(max(ends) for ends in zip(*each, strict=True)))

    return at


def lowered(one: IntervalEstimator, limit: float) -> IntervalEstimator:
    """A number that noise can only lower, such as the least of many correlations: it may hold, and refutes nothing.

    Args:
        one: the number.
        limit: the most that it can be.
    """
    return lambda level: one(level)._replace(high=limit)


def raised(one: IntervalEstimator, limit: float) -> IntervalEstimator:
    """A number that noise can only raise, such as a limit minus a correlation: it may be refuted, and never holds.

    Args:
        one: the number.
        limit: the least that it can be.
    """
    return lambda level: one(level)._replace(low=limit)


def alike(one: IntervalEstimator, other: IntervalEstimator) -> IntervalEstimator:
    """Whether two numbers have the same sign: the second where the first is above zero, minus it where it is below.

    Each is asked at half the level; where the first may be either, so may the answer.
    """

    def at(level: float) -> Estimate:
        sign, found, mirrored = one(level / 2), other(level / 2), negative(other)(level / 2)
        likely = found if sign.value > 0 else mirrored
        if sign.low > 0 or sign.high < 0:
            return likely
        return Estimate(likely.value, min(found.low, mirrored.low), max(found.high, mirrored.high))

    return at
