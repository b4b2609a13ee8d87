"""Bounds of metrics computed from incomplete counts, over all possible outcomes of the images not yet evaluated.

An image that is not yet evaluated may be correct or misclassified. A metric of incomplete counts therefore has no
value, but a lower and an upper bound that are valid for every completion of the counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from classwise.stats import metrics
from classwise.stats.counts import ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import lowest_interval, wilson
from classwise.stats.worst_class import minimum

SLACK = 1e-12
"""Bounds computed by iteration are widened by this amount to allow for rounding errors."""
MAX_VARIANCE = 0.25
"""The largest variance of numbers in [0, 1]."""
WORST_SHARE = 0.2
"""The share of the classes that ``worst20`` averages."""


class Bounds(NamedTuple):
    """Lower and upper bound of a number; both are NaN where no bound is known."""

    low: float
    high: float


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


Measure = Callable[[BoundedCounts, BoundedCounts | None, float], Bounds]
"""Maps counts under an attack, counts on clean images (None if not evaluated) and alpha to bounds."""


def overall(counts: BoundedCounts) -> Bounds:
    """Bounds of the accuracy over all images; both are attained."""
    if math.isinf(counts.unplaced):
        return Bounds(0.0, 1.0)
    if not counts.unplaced:
        return Bounds(metrics.overall_micro(counts.low), metrics.overall_micro(counts.high))
    correct = int(counts.correct.sum())
    return Bounds(correct / counts.total, (correct + counts.unjudged) / counts.total)


def variance(counts: BoundedCounts) -> Bounds:
    """Bounds of the variance of the class accuracies.

    They are valid for every completion and not always attained. The lower bound is the least variance of real numbers
    between the bounds l_c and u_c of the classes. The upper bound is min_t mean_c max((l_c - t)^2, (u_c - t)^2): the
    mean square about any t is at least the variance.
    """
    if counts.unplaced:
        return Bounds(0.0, MAX_VARIANCE)
    low, high = (values[counts.count > 0] for values in counts.accuracy)
    if np.array_equal(low, high):
        value = metrics.class_variance(low)
        return Bounds(value, value)

    def nearest(t: float) -> FloatArray:
        return np.asarray(np.clip(t, low, high))

    def farthest(t: float) -> FloatArray:
        return np.where(np.abs(high - t) > np.abs(low - t), high, low)

    least, most = (float(((point(t) - t) ** 2).mean()) for point in (nearest, farthest) for t in (_balance(point),))
    return Bounds(max(least - SLACK, 0.0), most + SLACK)


def _balance(point: Callable[[float], FloatArray]) -> float:
    """Root t in [0, 1] of the increasing function t - mean(point(t)), by bisection."""
    left, right = 0.0, 1.0
    for _ in range(60):
        middle = (left + right) / 2
        left, right = (left, middle) if middle > point(middle).mean() else (middle, right)
    return (left + right) / 2


def discrepancy(counts: BoundedCounts) -> Bounds:
    """Bounds of the highest minus the lowest class accuracy.

    The upper bound is attained if no image is unplaced; the lower bound is not always attained.
    """
    low, high = counts.accuracy
    certain = counts.count > 0
    least = float(max(low[certain].max() - high[certain].min(), 0.0)) if certain.any() else 0.0
    known = ~np.isnan(low)
    low, high = low[known], high[known]
    if len(low) < 2:
        return Bounds(0.0, 0.0)
    top, bottom = int(high.argmax()), int(low.argmin())
    if top != bottom:
        return Bounds(least, max(float(high[top] - low[bottom]), 0.0))
    second_high, second_low = np.delete(high, top).max(), np.delete(low, bottom).min()
    return Bounds(least, max(float(second_high - low[bottom]), float(high[top] - second_low), 0.0))


def _overall(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
    del clean, alpha
    return overall(counts)


def _macro(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
    del clean, alpha
    return Bounds(*(metrics.overall_macro(ends) for ends in counts.accuracy))


def _worst(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
    del clean, alpha
    return Bounds(*(metrics.worst_class(ends).accuracy for ends in counts.accuracy))


def _worst20(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
    del clean, alpha
    return Bounds(*(metrics.worst_share(ends, WORST_SHARE) for ends in counts.accuracy))


def _cv(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
    del clean, alpha
    return variance(counts)


def _mcd(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
    del clean, alpha
    return discrepancy(counts)


def _nrr(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
    del alpha
    if clean is None:
        return Bounds(math.nan, math.nan)
    return Bounds(*(metrics.nrr(*ends) for ends in zip(overall(clean), overall(counts), strict=True)))


def _hmw(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
    worst = _worst(counts, clean, alpha)
    return Bounds(*(metrics.hmw(*ends) for ends in zip(overall(counts), worst, strict=True)))


def _overall_end(end: int) -> Measure:
    """Bounds of the lower (0) or upper (1) end of the interval of the overall accuracy."""

    def measure(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
        del clean
        if math.isinf(counts.unplaced):
            return Bounds(0.0, 1.0)
        correct = int(counts.correct.sum())
        ends = [wilson(successes, counts.total, alpha)[end] for successes in (correct, correct + counts.unjudged)]
        return Bounds(*map(float, ends))

    return measure


def _worst_end(end: int) -> Measure:
    """Bounds of the lower (0) or upper (1) end of the interval of the lowest class accuracy (`lowest_interval`).

    The end increases with every correct prediction, so both bounds are attained.
    """

    def measure(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
        del clean
        if counts.unplaced:
            return Bounds(0.0, 1.0)
        return Bounds(*(lowest_interval(each, alpha)[end] for each in (counts.low, counts.high)))

    return measure


def _split(counts: BoundedCounts, clean: BoundedCounts | None, alpha: float) -> Bounds:
    """The split estimate; it depends on random halves, so no bound is known unless every image is evaluated."""
    del clean
    value = minimum(counts.low, alpha).split if counts.complete else math.nan
    return Bounds(value, value)


MEASURES: dict[str, Measure] = {
    "overall": _overall,
    "macro": _macro,
    "worst": _worst,
    "worst20": _worst20,
    "cv": _cv,
    "mcd": _mcd,
    "nrr": _nrr,
    "hmw": _hmw,
    "overall.low": _overall_end(0),
    "overall.high": _overall_end(1),
    "worst.low": _worst_end(0),
    "worst.high": _worst_end(1),
    "worst.split": _split,
}
"""The metrics with bounds: those of a summary (fractions; ``cv`` in fractions squared) and the ends of their intervals.
The interval of ``worst`` is that of the minimum over the classes."""
