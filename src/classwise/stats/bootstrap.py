"""The paired bootstrap: intervals of statistics of several models or attacks on the same images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import ClassCounts, FloatArray, PairedCounts, class_labels, outcomes
from classwise.stats.interval_estimators import IntervalEstimator, interval
from classwise.stats.intervals import Estimate, two_sided_z
from classwise.stats.paired import difference_of_minima
from classwise.stats.resampling import resampled_accuracies

Statistic = Callable[[FloatArray], FloatArray]
"""From class accuracies (..., K, C) of K rows to a number each (...)."""

_USUAL = 0.05
"""The level at which percentiles are read; beyond, too few resamples lie outside."""


class Resampled:
    """K rows of right and wrong on the same images, and resamples of the images within each class.

    The images of a resample are the same for all rows, so that differences between rows are paired. Population P: new
    images of the same classes, the models fixed.

    Args:
        correct: (K, N) true where a row is right on an image.
        labels: (N,) whole numbers in 0 .. C-1.
        num_classes: C.
        resamples: how many.
        seed: of the resampling.

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
            raise ClasswiseError(f"class {label} has no image; resampling needs one of each class")
        self.count, self.right, self.labels = count, right, index
        self.accuracy = np.stack([ClassCounts.from_labels(index, row, num_classes).accuracy for row in right])
        self.resampled = resampled_accuracies(right, index, num_classes, resamples=resamples, seed=seed)

    def estimate(self, statistic: Statistic, level: float = 0.05) -> Estimate:
        """A statistic of the class accuracies, with an interval of error level ``level``.

        Value +- r: r is the larger distance from the value to the two 95 % percentiles, scaled to the level by the
        normal quantiles. The larger of the two, since minima and variances of resamples are biased to one side.
        """
        value = float(statistic(self.accuracy))
        values = statistic(self.resampled)
        low, high = np.quantile(values, (_USUAL / 2, 1 - _USUAL / 2))
        reach = max(value - float(low), float(high) - value, 0.0) or self._of_one_image(statistic, value)
        reach *= two_sided_z(level) / two_sided_z(_USUAL)
        return Estimate(value, value - reach, value + reach)

    def _of_one_image(self, statistic: Statistic, value: float) -> float:
        """How far one image that is judged otherwise moves the statistic: for where no resample differs."""
        rows, classes = self.accuracy.shape
        changed = np.repeat(self.accuracy[None], rows * classes, axis=0)
        row, label = np.divmod(np.arange(rows * classes), classes)
        inwards = np.where(self.accuracy[row, label] > 0.5, -1, 1)
        changed[np.arange(rows * classes), row, label] += inwards / self.count[label]
        return float(np.abs(statistic(changed) - value).max())

    def part(self, statistic: Statistic, scale: float = 1.0) -> IntervalEstimator:
        """The same as a function of the level, times ``scale`` (100 for points): an interval estimator."""
        return interval(self.estimate(statistic), scale)

    def total(self, first: int = 0, second: int = 1) -> IntervalEstimator:
        """The mean over the classes of a row minus that of another, in points."""
        return self.part(lambda a: a[..., first, :].mean(axis=-1) - a[..., second, :].mean(axis=-1), 100)

    def worst(self, first: int = 0, second: int = 1) -> IntervalEstimator:
        """The worst class of a row minus that of another, in points, which may be two classes.

        Not by resampling: a minimum over many low classes is lower by chance than one over few.
        """
        pairs = PairedCounts.from_labels(self.labels, self.right[first], self.right[second], len(self.count))
        return lambda level: Estimate(*(100 * end for end in difference_of_minima(pairs, level)))


def beyond_others(change: FloatArray, classes: Sequence[int]) -> FloatArray:
    """The mean of a change of class accuracies, (..., C), over some classes minus that over the others, (...)."""
    others = [label for label in range(change.shape[-1]) if label not in classes]
    return np.asarray(change[..., list(classes)].mean(axis=-1) - change[..., others].mean(axis=-1))
