"""Interval estimators (functions from an error level to an estimate with its interval), arithmetic, and a bootstrap.

Some plug-in estimates are biased: a maximum, a minimum, a range. The intervals here are valid for them, too, and
therefore conservative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import ClassCounts, FloatArray, PairedCounts, class_labels, outcomes, ratio
from classwise.stats.intervals import Estimate, student, two_sided_z
from classwise.stats.metrics.discrepancy import discrepancy_difference, mcd_estimate
from classwise.stats.metrics.variance import deviation_difference
from classwise.stats.paired import difference_of_minima
from classwise.stats.resampling import resampled_accuracies
from classwise.stats.stratified import sum_of_class_means

IntervalEstimator = Callable[[float], Estimate]
"""Maps an error level to an estimate with its interval."""
ALPHA = 0.05
"""The error level of an `Estimate` that comes without one."""


def exactly(value: float) -> IntervalEstimator:
    """A number that is known exactly."""

    def at(level: float) -> Estimate:
        del level
        return Estimate(value, value, value)

    return at


def interval(estimate: Estimate, scale: float = 1.0) -> IntervalEstimator:
    """Extend an estimate with a 95 % interval to any level by normal quantiles, times ``scale`` (100 for points).

    The standard error is the larger distance from the value to the two ends, divided by 1.96. An interval of zero width
    means that no resample differed, not that the value is certain: its ends become NaN.
    """
    value = scale * estimate.value
    half_width = abs(scale) * max(estimate.value - estimate.low, estimate.high - estimate.value)
    error = half_width / two_sided_z(ALPHA) if half_width > 0 else math.nan

    def at(level: float) -> Estimate:
        return Estimate(value, value - two_sided_z(level) * error, value + two_sided_z(level) * error)

    return at


def difference(one: Estimate, other: Estimate) -> Estimate:
    """``one`` minus ``other`` with errors treated as independent; conservative for estimates from the same images."""
    half_width = math.hypot(
        *(max(estimate.value - estimate.low, estimate.high - estimate.value) for estimate in (one, other))
    )
    value = one.value - other.value
    return Estimate(value, value - half_width, value + half_width)


def widest(counts: ClassCounts, beyond: float = 0.0) -> IntervalEstimator:
    """Maximal class discrepancy (MCD) minus a constant, from simultaneous intervals of the classes.

    The plug-in MCD is biased up; the simultaneous intervals account for that.

    Args:
        counts: per-class counts.
        beyond: the constant, in points.

    Returns:
        An estimator in points.
    """
    return plus(lambda level: in_points(mcd_estimate(counts, level)), -beyond)


def wider(one: ClassCounts, other: ClassCounts, factor: float = 1.0) -> IntervalEstimator:
    """MCD of ``one`` minus ``factor`` times that of ``other``, in points (`discrepancy_difference`)."""
    return lambda level: in_points(discrepancy_difference(one, other, factor, level))


def more_varied(one: ClassCounts, other: ClassCounts, factor: float = 1.0) -> IntervalEstimator:
    """Root of CV of ``one`` minus that of ``factor`` times CV of ``other``, corrected for bias, in points.

    It is above 0 exactly if CV of ``one`` is above ``factor`` times CV of ``other``; see
    `deviation_difference`.
    """
    return lambda level: in_points(deviation_difference(one, other, factor, level))


def in_points(one: Estimate) -> Estimate:
    """An estimate in fractions as one in points."""
    return Estimate(*(100 * end for end in one))


def minus(one: IntervalEstimator, other: IntervalEstimator) -> IntervalEstimator:
    """``one`` minus ``other`` by interval arithmetic, each interval at half the level (Bonferroni)."""
    return _jointly([one, negative(other)], sum)


def plus(one: IntervalEstimator, points: float) -> IntervalEstimator:
    """``one`` plus a constant."""
    return lambda level: Estimate(*(end + points for end in one(level)))


def negative(one: IntervalEstimator) -> IntervalEstimator:
    """``one`` with the opposite sign."""

    def at(level: float) -> Estimate:
        estimate = one(level)
        return Estimate(-estimate.value, -estimate.high, -estimate.low)

    return at


def greatest(parts: Sequence[IntervalEstimator]) -> IntervalEstimator:
    """The maximum of several numbers, from intervals that are simultaneous (Bonferroni)."""
    return _jointly(parts, max)


def averaged(parts: Sequence[IntervalEstimator]) -> IntervalEstimator:
    """The mean of several numbers, from intervals that are simultaneous (Bonferroni); they may be dependent."""
    return _jointly(parts, lambda ends: sum(ends) / len(parts))


def _jointly(parts: Sequence[IntervalEstimator], function: Callable[[tuple[float, ...]], float]) -> IntervalEstimator:
    """A function of several numbers that increases in each of them, from simultaneous intervals."""

    def at(level: float) -> Estimate:
        estimates = [part(level / len(parts)) for part in parts]
        return Estimate(*(function(ends) for ends in zip(*estimates, strict=True)))

    return at


def alike(one: IntervalEstimator, other: IntervalEstimator) -> IntervalEstimator:
    """The sign of ``one`` times ``other``: positive if the two numbers have the same sign.

    Each interval is at half the level (Bonferroni). If the sign of ``one`` is uncertain, the interval covers both
    products.
    """

    def at(level: float) -> Estimate:
        sign, same, opposite = one(level / 2), other(level / 2), negative(other)(level / 2)
        product = same if sign.value > 0 else opposite
        if sign.low > 0 or sign.high < 0:
            return product
        return Estimate(product.value, min(same.low, opposite.low), max(same.high, opposite.high))

    return at


def over_trainings(parts: Sequence[IntervalEstimator]) -> IntervalEstimator:
    """The mean of an estimate over independent trainings, for new trainings and new images (population T).

    The trainings are evaluated on the same images, so the error of the images does not shrink with their number: the
    half-width is sqrt(t^2 s^2 / S + h^2), where t is Student's quantile with S - 1 degrees of freedom, s the standard
    deviation of the S estimates, and h the mean half-width for fixed models. It is conservative, since s includes a
    part of the error of the images.

    Args:
        parts: an estimator for each training, at least two.
    """

    def at(level: float) -> Estimate:
        estimates = [part(level) for part in parts]
        mean = student([estimate.value for estimate in estimates], level)
        below, above = (
            sum(ends) / len(estimates) for ends in zip(*((v - lo, hi - v) for v, lo, hi in estimates), strict=True)
        )
        between = mean.value - mean.low
        return Estimate(mean.value, mean.value - math.hypot(between, below), mean.value + math.hypot(between, above))

    return at


Statistic = Callable[[FloatArray], FloatArray]
"""Maps class accuracies (..., K, C) of K rows to numbers (...)."""

_PERCENTILE_LEVEL = 0.05
"""The level at which percentiles are estimated; below it, too few resamples are in the tails."""
_POINTS = 20
"""Random class accuracies at which an affine statistic equals its weighted sum."""


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
        drawn = resampled_accuracies(right, index, num_classes, resamples=resamples, seed=seed)
        # A resample has the variance with n in place of n - 1
        self.resampled = self.accuracy + (drawn - self.accuracy) * np.sqrt(ratio(count, count - 1))

    def estimate(self, statistic: Statistic, level: float = ALPHA) -> Estimate:
        """Estimate a statistic of the class accuracies, with an interval of error level ``level``; see `part`."""
        return self.part(statistic)(level)

    def part(self, statistic: Statistic, scale: float = 1.0) -> IntervalEstimator:
        """The interval estimator (a function of the level) of a statistic, times ``scale`` (100 for points).

        If the statistic is affine in the class accuracies, such as the difference of two totals, the interval is that
        of `classwise.stats.stratified.sum_of_class_means`. For another statistic it is value +- r. The half-width r is
        the larger distance from the value to the 2.5 % and 97.5 % percentiles of the resamples, scaled to the level by
        normal quantiles: minima and variances of resamples are biased to one side. Where no resample differs, r is the
        largest change that one image causes. The ends are NaN if a class has a single image, which has no variance.
        """
        value, coefficients = float(statistic(self.accuracy)), self._affine(statistic)
        if coefficients is not None:
            values = (coefficients[:, self.labels] * self.right).sum(axis=0)
            low, high = (np.minimum(coefficients, 0).sum(axis=0), np.maximum(coefficients, 0).sum(axis=0))
            constant = value - float((coefficients * self.accuracy).sum())

            def at(level: float) -> Estimate:
                estimate = sum_of_class_means(values, self.labels, low, high, level)
                return Estimate(*(scale * (constant + end) for end in estimate))

            return at
        ends = np.quantile(statistic(self.resampled), (_PERCENTILE_LEVEL / 2, 1 - _PERCENTILE_LEVEL / 2))
        reach = max(value - float(ends[0]), float(ends[1]) - value, 0.0) or self._of_one_image(statistic, value)
        return interval(Estimate(value, value - reach, value + reach), scale)

    def _affine(self, statistic: Statistic) -> FloatArray | None:
        """Coefficients (K, C) of the class accuracies, if the statistic is a constant plus their weighted sum."""
        rows, classes = self.accuracy.shape
        start = np.asarray(statistic(np.zeros_like(self.accuracy)))
        coefficients = np.empty_like(self.accuracy)
        for row in range(rows):
            unit = np.zeros((classes, rows, classes))
            unit[:, row] = np.eye(classes)
            coefficients[row] = statistic(unit) - start
        points = np.random.default_rng(0).random((_POINTS, rows, classes))
        if not np.allclose(statistic(points), start + (points * coefficients).sum(axis=(1, 2)), rtol=0, atol=1e-9):
            return None
        return coefficients

    def _of_one_image(self, statistic: Statistic, value: float) -> float:
        """Largest change of the statistic if the outcome of one image changes."""
        rows, classes = self.accuracy.shape
        changed = np.repeat(self.accuracy[None], rows * classes, axis=0)
        row, label = np.divmod(np.arange(rows * classes), classes)
        inwards = np.where(self.accuracy[row, label] > 0.5, -1, 1)
        changed[np.arange(rows * classes), row, label] += inwards / self.count[label]
        return float(np.abs(statistic(changed) - value).max())

    def total(self, first: int = 0, second: int = 1) -> IntervalEstimator:
        """Macro accuracy of row ``first`` minus that of row ``second``, in points."""
        return self.part(lambda a: a[..., first, :].mean(axis=-1) - a[..., second, :].mean(axis=-1), 100)

    def worst(self, first: int = 0, second: int = 1) -> IntervalEstimator:
        """Worst-class accuracy of row ``first`` minus that of row ``second``, in points; the worst classes may differ.

        The interval is not a bootstrap interval: a resampled minimum over many low classes is biased low, more than one
        over few (see `classwise.stats.paired.difference_of_minima`).
        """
        pairs = PairedCounts.from_labels(self.labels, self.right[first], self.right[second], len(self.count))
        return lambda level: in_points(difference_of_minima(pairs, level))


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
