"""Paired bootstrap: intervals for statistics of several models or attacks on the same images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.papers.interval_estimators import IntervalEstimator, interval
from classwise.stats.counts import ClassCounts, FloatArray, PairedCounts, class_labels, outcomes
from classwise.stats.intervals import Estimate, two_sided_z
from classwise.stats.paired import difference_of_minima
from classwise.stats.resampling import resampled_accuracies

Statistic = Callable[[FloatArray], FloatArray]
"""Maps class accuracies (..., K, C) of K rows to numbers (...)."""

_PERCENTILE_LEVEL = 0.05
"""The level at which percentiles are estimated; below it, too few resamples are in the tails."""


class Resampled:
    """K rows of correct and incorrect predictions on the same images, with bootstrap resamples stratified by class.

    A resample has the same images for all rows, so that differences between rows are paired. Population P: new images
    of the same classes, the models fixed.

    Args:
        correct: (K, N) true where a prediction is correct.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C.
        resamples: number of resamples.
        seed: seed of the resampling.

    Raises:
        ClasswiseError: if a label is out of range, the lengths differ, or a class has no image.
    """

    def __init__(
        self, correct: ArrayLike, labels: ArrayLike, num_classes: int, *, resamples: int = 1000, seed: int = 0
    ) -> None:
        index = class_labels(labels, num_classes)
        right = outcomes(correct, len(index))
        if right.ndim != 2:
            raise ClasswiseError(f"correct: expected shape (rows, images), got {right.shape}")
        count = np.bincount(index, minlength=num_classes)
        for label in np.flatnonzero(count == 0)[:1]:
            raise ClasswiseError(f"class {label} has no image; resampling requires at least one image per class")
        self.count, self.right, self.labels = count, right, index
        self.accuracy = np.stack([ClassCounts.from_labels(index, row, num_classes).accuracy for row in right])
        self.resampled = resampled_accuracies(right, index, num_classes, resamples=resamples, seed=seed)

    def estimate(self, statistic: Statistic, level: float = 0.05) -> Estimate:
        """Estimate a statistic of the class accuracies, with an interval of error level ``level``.

        The interval is value +- r. The half-width r is the larger distance from the value to the 2.5 % and 97.5 %
        percentiles, scaled to the level by normal quantiles: minima and variances of resamples are biased to one side.
        Where no resample differs, r is the largest change that one image causes.
        """
        value = float(statistic(self.accuracy))
        values = statistic(self.resampled)
        low, high = np.quantile(values, (_PERCENTILE_LEVEL / 2, 1 - _PERCENTILE_LEVEL / 2))
        half_width = max(value - float(low), float(high) - value, 0.0) or self._of_one_image(statistic, value)
        half_width *= two_sided_z(level) / two_sided_z(_PERCENTILE_LEVEL)
        return Estimate(value, value - half_width, value + half_width)

    def _of_one_image(self, statistic: Statistic, value: float) -> float:
        """Largest change of the statistic if the outcome of one image changes."""
        rows, classes = self.accuracy.shape
        changed = np.repeat(self.accuracy[None], rows * classes, axis=0)
        row, label = np.divmod(np.arange(rows * classes), classes)
        inwards = np.where(self.accuracy[row, label] > 0.5, -1, 1)
        changed[np.arange(rows * classes), row, label] += inwards / self.count[label]
        return float(np.abs(statistic(changed) - value).max())

    def part(self, statistic: Statistic, scale: float = 1.0) -> IntervalEstimator:
        """`estimate` as an interval estimator (a function of the level), times ``scale`` (100 for points)."""
        return interval(self.estimate(statistic), scale)

    def total(self, first: int = 0, second: int = 1) -> IntervalEstimator:
        """Macro accuracy of row ``first`` minus that of row ``second``, in points."""
        return self.part(lambda a: a[..., first, :].mean(axis=-1) - a[..., second, :].mean(axis=-1), 100)

    def worst(self, first: int = 0, second: int = 1) -> IntervalEstimator:
        """Worst-class accuracy of row ``first`` minus that of row ``second``, in points; the worst classes may differ.

        The interval is not a bootstrap interval: a resampled minimum over many low classes is biased low, more than one
        over few (see `classwise.stats.paired.difference_of_minima`).
        """
        pairs = PairedCounts.from_labels(self.labels, self.right[first], self.right[second], len(self.count))
        return lambda level: Estimate(*(100 * end for end in difference_of_minima(pairs, level)))


def beyond_others(change: FloatArray, classes: Sequence[int]) -> FloatArray:
    """Mean change of the accuracy of some classes minus that of the others.

    Args:
        change: (..., C) changes of class accuracies.
        classes: labels of the classes.

    Returns:
        (...) differences of means.
    """
    others = [label for label in range(change.shape[-1]) if label not in classes]
    return np.asarray(change[..., list(classes)].mean(axis=-1) - change[..., others].mean(axis=-1))
