"""Bounds of metrics computed from incomplete counts, over all possible outcomes of the images not yet evaluated.

An image that is not yet evaluated may be correct or misclassified. A metric of incomplete counts therefore has no
value, but a lower and an upper bound that are valid for every completion of the counts. A metric that is a rational
function of the counts has rational bounds, which are computed exactly, so that they can be compared with a limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import ClassCounts, FloatArray, IntArray

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


def accuracy_of(counts: BoundedCounts, label: int) -> Bounds[Fraction] | Bounds[float]:
    """Bounds of the accuracy of a class; NaN for a class that certainly has no image."""
    if math.isinf(counts.unplaced):
        return Bounds(Fraction(0), Fraction(1))
    more = int(counts.unplaced)
    size = int(counts.count[label]) + more
    if not size:
        return UNKNOWN
    return Bounds(Fraction(int(counts.correct[label]), size), Fraction(int(counts.high.correct[label]) + more, size))
