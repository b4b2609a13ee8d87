"""Bounds of metrics computed from incomplete counts, over all possible outcomes of the images not yet evaluated.

An image that is not yet evaluated may be correct or misclassified. A metric of incomplete counts therefore has no
value, but a lower and an upper bound that are valid for every completion of the counts. A metric that is a rational
function of the counts has rational bounds, which are computed exactly, so that they can be compared with a limit.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import lowest_interval, proportion_interval
from classwise.stats.metric_intervals import FIFTH
from classwise.stats.metrics import classes_of_share, harmonic_mean
from classwise.stats.worst_class import minimum

Number = TypeVar("Number", Fraction, float)


class Bounds(NamedTuple, Generic[Number]):
    """Lower and upper bound of a number; both are NaN where no bound is known."""

    low: Number
    high: Number


UNKNOWN = Bounds(math.nan, math.nan)


class ScaledAccuracies(NamedTuple):
    """Bounds of the accuracies of the classes that have or may have images, times a common denominator.

    Attributes:
        low: the lower bounds, integers.
        high: the upper bounds.
        whole: the common denominator, which is an accuracy of 1.
        certain: whether each class certainly has an image.
    """

    low: list[int]
    high: list[int]
    whole: int
    certain: list[bool]


@dataclass(frozen=True, eq=False)
class BoundedCounts:
    """Per-class numbers of images, evaluated images and correctly classified images.

    Attributes:
        count: (C,) int64, images known to be of each class.
        judged: (C,) int64, evaluated images of each class, at most ``count``.
        correct: (C,) int64, correctly classified images of each class, at most ``judged``.
        unplaced: number of images that are not evaluated and whose class is unknown; infinity if the number is unknown.
    """

    count: IntArray
    judged: IntArray
    correct: IntArray
    unplaced: float = 0.0

    @classmethod
    def of(cls, counts: ClassCounts) -> Self:
        """Complete counts: every image is evaluated."""
        return cls(counts.count, counts.count, counts.correct)

    @property
    def unjudged(self) -> float:
        """Number of images that are not evaluated, over all classes."""
        return float((self.count - self.judged).sum()) + self.unplaced

    @property
    def complete(self) -> bool:
        """Whether every image is evaluated."""
        return not self.unjudged

    @property
    def total(self) -> float:
        """Number of images over all classes; infinity if it is unknown."""
        return float(self.count.sum()) + self.unplaced

    @property
    def low(self) -> ClassCounts:
        """The counts if every image that is not evaluated is misclassified; without the unplaced images."""
        return ClassCounts(self.count, self.correct)

    @property
    def high(self) -> ClassCounts:
        """The counts if every image that is not evaluated is correct; without the unplaced images."""
        return ClassCounts(self.count, self.count - self.judged + self.correct)

    @property
    def accuracy(self) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bound (C,) of the accuracy of each class; NaN for a class that certainly has no image.

        The unplaced images may belong to any class.
        """
        if not self.unplaced:
            return self.low.accuracy, self.high.accuracy
        if math.isinf(self.unplaced):
            return np.zeros(len(self.count)), np.ones(len(self.count))
        size = self.count + self.unplaced
        return self.correct / size, (self.high.correct + self.unplaced) / size

    @cached_property
    def scaled(self) -> ScaledAccuracies:
        """The bounds of `accuracy` as exact integers, without the classes that certainly have no image.

        Raises:
            ClasswiseError: if no class has an image.
        """
        if math.isinf(self.unplaced):
            classes = len(self.count)
            return ScaledAccuracies([0] * classes, [1] * classes, 1, (self.count > 0).tolist())
        more = int(self.unplaced)
        ends = zip(self.count.tolist(), self.correct.tolist(), self.high.correct.tolist(), strict=True)
        present = [end for end in ends if end[0] + more]
        if not present:
            raise ClasswiseError("class accuracies: no class has an image")
        whole = math.lcm(*(count + more for count, _, _ in present))
        return ScaledAccuracies(
            [low * (whole // (count + more)) for count, low, _ in present],
            [(high + more) * (whole // (count + more)) for count, _, high in present],
            whole,
            [count > 0 for count, _, _ in present],
        )


def overall(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the accuracy over all images; both are attained.

    Raises:
        ClasswiseError: if there is no image.
    """
    if math.isinf(counts.unplaced):
        return Bounds(Fraction(0), Fraction(1))
    correct, total = int(counts.correct.sum()), int(counts.total)
    if not total:
        raise ClasswiseError("overall accuracy: there is no image")
    return Bounds(Fraction(correct, total), Fraction(correct + int(counts.unjudged), total))


def macro(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the mean of the class accuracies."""
    low, high, whole, _ = counts.scaled
    return Bounds(Fraction(sum(low), whole * len(low)), Fraction(sum(high), whole * len(high)))


def worst(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the lowest class accuracy."""
    low, high, whole, _ = counts.scaled
    return Bounds(Fraction(min(low), whole), Fraction(min(high), whole))


def worst20(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the mean of the lowest fifth of the class accuracies."""
    low, high, whole, _ = counts.scaled
    lowest = classes_of_share(len(low), FIFTH)
    least, most = (Fraction(sum(sorted(ends)[:lowest]), whole * lowest) for ends in (low, high))
    return Bounds(least, most)


def variance(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the variance of the class accuracies.

    They are valid for every completion and not always attained. The lower bound is the least variance of real numbers
    between the bounds l_c and u_c of the classes. The upper bound is min_t mean_c max((l_c - t)^2, (u_c - t)^2): the
    mean square about any t is at least the variance.
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


def discrepancy(counts: BoundedCounts) -> Bounds[Fraction]:
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


def accuracy_of(counts: BoundedCounts, label: int) -> Bounds[Fraction] | Bounds[float]:
    """Bounds of the accuracy of a class; NaN for a class that certainly has no image."""
    if math.isinf(counts.unplaced):
        return Bounds(Fraction(0), Fraction(1))
    more = int(counts.unplaced)
    size = int(counts.count[label]) + more
    if not size:
        return UNKNOWN
    return Bounds(Fraction(int(counts.correct[label]), size), Fraction(int(counts.high.correct[label]) + more, size))


def clean_and_robust(clean: BoundedCounts, counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the harmonic mean of clean and robust overall accuracy."""
    return _harmonic(overall(clean), overall(counts))


def overall_and_worst(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the harmonic mean of overall and worst-class accuracy."""
    return _harmonic(overall(counts), worst(counts))


def _harmonic(first: Bounds[Fraction], second: Bounds[Fraction]) -> Bounds[Fraction]:
    return Bounds(harmonic_mean(first.low, second.low), harmonic_mean(first.high, second.high))


def overall_end(counts: BoundedCounts, alpha: float, *, end: int) -> Bounds[float]:
    """Bounds of the lower (0) or upper (1) end of the interval of the overall accuracy."""
    if math.isinf(counts.unplaced):
        return Bounds(0.0, 1.0)
    correct = int(counts.correct.sum())
    ends = [
        proportion_interval(successes, counts.total, alpha)[end] for successes in (correct, correct + counts.unjudged)
    ]
    return Bounds(float(ends[0]), float(ends[1]))


def worst_end(counts: BoundedCounts, alpha: float, *, end: int) -> Bounds[float]:
    """Bounds of the lower (0) or upper (1) end of the interval of the lowest class accuracy (`lowest_interval`).

    The end increases with every correct prediction, so both bounds are attained.
    """
    if counts.unplaced:
        return Bounds(0.0, 1.0)
    return Bounds(lowest_interval(counts.low, alpha)[end], lowest_interval(counts.high, alpha)[end])


def split(counts: BoundedCounts, alpha: float) -> Bounds[float]:
    """The split estimate; it depends on random halves, so no bound is known unless every image is evaluated."""
    value = minimum(counts.low, alpha).split if counts.complete else math.nan
    return Bounds(value, value)
