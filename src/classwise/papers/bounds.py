"""Parts of tests whose plain estimates noise pushes one way: the widest, the worst, the best of several.

Each is a function from an error level to an estimate whose interval holds whatever noise does, and so is wide.
"""

from __future__ import annotations

from collections.abc import Sequence

from classwise.papers.claims import Part
from classwise.report import ranges
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate


def widest(counts: ClassCounts, beyond: float = 0.0) -> Part:
    """MCD in points minus some, between intervals that hold for all classes at once: noise lifts no lower end above 0.

    Args:
        counts: of the classes.
        beyond: points.
    """

    def at(level: float) -> Estimate:
        return Estimate(*(100 * end - beyond for end in ranges.discrepancy(counts, level)))

    return at


def wider(one: ClassCounts, other: ClassCounts) -> Part:
    """MCD of one minus that of the other, in points."""
    return minus(widest(one), widest(other))


def minus(one: Part, other: Part) -> Part:
    """One number minus another: the ends of their intervals, each at half the level, subtracted crosswise."""

    def at(level: float) -> Estimate:
        first, second = one(level / 2), other(level / 2)
        return Estimate(first.value - second.value, first.low - second.high, first.high - second.low)

    return at


def plus(one: Part, points: float) -> Part:
    """A number and a constant."""
    return lambda level: Estimate(*(end + points for end in one(level)))


def negative(one: Part) -> Part:
    """Minus a number."""

    def at(level: float) -> Estimate:
        found = one(level)
        return Estimate(-found.value, -found.high, -found.low)

    return at


def greatest(parts: Sequence[Part]) -> Part:
    """The greatest of several numbers, each with its share of the level: choosing it among them costs nothing more."""

    def at(level: float) -> Estimate:
        each = [part(level / len(parts)) for part in parts]
        return Estimate(*(max(ends) for ends in zip(*each, strict=True)))

    return at


def lowered(one: Part, limit: float) -> Part:
    """A number that noise can only lower, such as the least of many correlations: it may hold, and refutes nothing.

    Args:
        one: the number.
        limit: the most that it can be.
    """
    return lambda level: one(level)._replace(high=limit)


def raised(one: Part, limit: float) -> Part:
    """A number that noise can only raise, such as a limit minus a correlation: it may be refuted, and never holds.

    Args:
        one: the number.
        limit: the least that it can be.
    """
    return lambda level: one(level)._replace(low=limit)


def alike(one: Part, other: Part) -> Part:
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
