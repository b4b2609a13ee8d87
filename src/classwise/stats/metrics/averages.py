"""Means of the accuracy: over all images, over the classes, and the classes above and below them."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.stats.bounds import BoundedCounts, Bounds
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, present_accuracies, ratio
from classwise.stats.intervals import Estimate, proportion_estimate, proportion_interval
from classwise.stats.registry import Metric
from classwise.stats.stratified import class_mean, weighted_mean


@checked
def class_accuracy(labels: ArrayLike, correct: ArrayLike, num_classes: int) -> FloatArray:
    """The accuracy of each class.

    Args:
        labels: (N,) integers in 0 .. C-1.
        correct: (N,) true where the prediction is correct.
        num_classes: C.

    Returns:
        (C,) fractions; NaN for absent classes.

    Raises:
        ClasswiseError: if a label is out of range, or the lengths differ.

    Example:
        >>> from classwise import metrics
        >>> metrics.class_accuracy([0, 0, 1, 1], [True, False, True, True], num_classes=3)
        array([0.5, 1. , nan])
    """
    return ClassCounts.from_labels(labels, correct, num_classes).accuracy


@checked
def overall_micro(counts: ClassCounts) -> float:
    """The accuracy over all images; NaN without images.

    Example:
        >>> from classwise import metrics
        >>> from classwise.stats.counts import ClassCounts
        >>> counts = ClassCounts.from_labels([0, 0, 0, 1], [True, True, True, False], num_classes=2)
        >>> metrics.overall_micro(counts)
        0.75
    """
    return float(ratio(counts.correct.sum(), counts.count.sum()))


def overall_estimate(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The accuracy over all images, with its `proportion_interval`."""
    return proportion_estimate(counts.correct.sum(), counts.count.sum(), alpha)


def overall_bounds(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the accuracy over all images; both are attained.

    Raises:
        ClasswiseError: if there is no image.
    """
    if math.isinf(counts.unplaced):
        return Bounds(Fraction(0), Fraction(1))
    correct, total = int(counts.correct.sum()), int(counts.total)
    if not total:
        raise ClasswiseError("overall_bounds accuracy: there is no image")
    return Bounds(Fraction(correct, total), Fraction(correct + int(counts.unjudged), total))


def overall_end(counts: BoundedCounts, alpha: float, *, end: int) -> Bounds[float]:
    """Bounds of the lower (0) or upper (1) end of the interval of the overall accuracy."""
    if math.isinf(counts.unplaced):
        return Bounds(0.0, 1.0)
    correct = int(counts.correct.sum())
    ends = [
        proportion_interval(successes, counts.total, alpha)[end] for successes in (correct, correct + counts.unjudged)
    ]
    return Bounds(float(ends[0]), float(ends[1]))


OVERALL = Metric(
    "overall",
    overall_micro,
    title="overall",
    about="mean over images",
    rational=True,
    interval=overall_estimate,
    bounds=overall_bounds,
    ends={"low": functools.partial(overall_end, end=0), "high": functools.partial(overall_end, end=1)},
)


@checked
def overall_macro(accuracy: ArrayLike) -> float:
    """The mean of the class accuracies (C,); equal to `overall_micro` if the classes have equal sizes.

    Example:
        >>> from classwise import metrics
        >>> metrics.overall_macro([1.0, 0.0, float("nan")])
        0.5
    """
    return float(present_accuracies(accuracy).mean())


def macro_bounds(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the mean of the class accuracies."""
    low, high, whole, _ = counts.scaled
    return Bounds(Fraction(sum(low), whole * len(low)), Fraction(sum(high), whole * len(high)))


MACRO = Metric(
    "macro",
    lambda counts: overall_macro(counts.accuracy),
    title="class mean",
    about="mean over classes",
    rational=True,
    interval=class_mean,
    bounds=macro_bounds,
)


def beyond_mean(counts: ClassCounts, alpha: float = 0.05) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The accuracy of each class minus the mean over the classes, with intervals.

    It is a weighted sum of the accuracy and the error rates of the other classes minus a constant, with the interval of
    `classwise.stats.stratified.weighted_mean`.

    Returns:
        Differences, lower ends and upper ends: three (C,) arrays, NaN for absent classes.
    """
    ends = np.full((3, counts.num_classes), np.nan)
    present = np.flatnonzero(counts.present)
    own = 1 - 1 / len(present)
    if len(present) == 1:
        ends[:, present] = 0.0
        return ends[0], ends[1], ends[2]
    accuracy, images = counts.accuracy[present], counts.count[present]
    for place, label in enumerate(present):
        mine = np.arange(len(present)) == place
        rates = np.where(mine, accuracy, 1 - accuracy)
        found = weighted_mean(images, rates, rates, np.where(mine, own, 1 / len(present)), alpha)
        ends[:, label] = np.array(found) - own
    return ends[0], ends[1], ends[2]


@checked
def robust_classes(accuracy: ArrayLike, overall: float) -> BoolArray:
    """Find the classes whose robust accuracy is above the overall one (kdd21 Definition 3.3).

    Args:
        accuracy: (C,) robust accuracies.
        overall: robust accuracy over all images.

    Returns:
        (C,) true where a_c > overall; a class with a_c = overall is neither robust nor vulnerable.

    Example:
        >>> from classwise import metrics
        >>> metrics.robust_classes([0.9, 0.5, 0.1], overall=0.5)
        array([ True, False, False])
    """
    return np.asarray(np.asarray(accuracy, dtype=np.float64) > overall)


@checked
def vulnerable_classes(accuracy: ArrayLike, overall: float) -> BoolArray:
    """Find the classes whose robust accuracy is below the overall one (kdd21 Definition 3.3).

    Args:
        accuracy: (C,) robust accuracies.
        overall: robust accuracy over all images.

    Returns:
        (C,) true where a_c < overall.

    Example:
        >>> from classwise import metrics
        >>> metrics.vulnerable_classes([0.9, 0.5, 0.1], overall=0.5)
        array([False, False,  True])
    """
    return np.asarray(np.asarray(accuracy, dtype=np.float64) < overall)
