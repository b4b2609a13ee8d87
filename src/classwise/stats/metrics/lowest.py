"""The lowest class accuracies: the worst class, the worst 20 % of the classes (cfa23 Appendix C.1), and the best class.

The class with the lowest accuracy on a finite test set is often not the true worst class, and its accuracy there is
biased low because of the selection: the true class of an extreme is unknown. The bounds of an extreme therefore need a
correction for the number of classes on one side only (`classwise.stats.intervals.lowest_interval`).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.config import Count, Seed
from classwise.stats.bounds import BoundedCounts, Bounds
from classwise.stats.counts import ClassCounts, FloatArray, present_accuracies, ratio
from classwise.stats.intervals import Estimate, lowest_interval
from classwise.stats.registry import Metric

FIFTH = 0.2
"""The share of the classes in `WORST20`."""


class LowestAccuracy(NamedTuple):
    """The class with the lowest accuracy: its label and its accuracy (a fraction).

    Example:
        >>> from classwise import metrics
        >>> metrics.worst_class([0.9, 0.5, 0.1]).label
        2
    """

    label: int
    accuracy: float


@checked
def worst_class(accuracy: ArrayLike) -> LowestAccuracy:
    """Find the lowest of the class accuracies (C,); among ties the first.

    Example:
        >>> from classwise import metrics
        >>> metrics.worst_class([0.9, 0.5, 0.1])
        LowestAccuracy(label=2, accuracy=0.1)
    """
    lowest = float(present_accuracies(accuracy).min())
    return LowestAccuracy(int(np.flatnonzero(np.asarray(accuracy) == lowest)[0]), lowest)


def worst_estimate(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The lowest class accuracy, with the interval of `lowest_interval`."""
    return Estimate(worst_class(counts.accuracy).accuracy, *lowest_interval(counts, alpha))


def worst_bounds(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the lowest class accuracy."""
    low, high, whole, _ = counts.scaled
    return Bounds(Fraction(min(low), whole), Fraction(min(high), whole))


def worst_end(counts: BoundedCounts, alpha: float, *, end: int) -> Bounds[float]:
    """Bounds of the lower (0) or upper (1) end of the interval of the lowest class accuracy (`lowest_interval`).

    The end increases with every correct prediction, so both bounds are attained.
    """
    if counts.unplaced:
        return Bounds(0.0, 1.0)
    return Bounds(lowest_interval(counts.low, alpha)[end], lowest_interval(counts.high, alpha)[end])


class Minimum(NamedTuple):
    """Estimates of the worst-class accuracy.

    Attributes:
        label: the class with the lowest accuracy on these images.
        plug_in: its accuracy on these images, biased low.
        split: sample-splitting estimate, biased high: the class is selected on one half of the images and evaluated on
            the other. NaN if no class has two images.
        low: lower end of the interval for the true minimum.
        high: upper end.
    """

    label: int
    plug_in: float
    split: float
    low: float
    high: float


@checked
def minimum(counts: ClassCounts, alpha: Level = 0.05, *, splits: Count = 10, seed: Seed = 0) -> Minimum:
    """Estimate the worst-class accuracy.

    The plug-in and the split estimate bracket the true value in expectation. The interval is that of
    `classwise.stats.intervals.lowest_interval`: [min_c L_c, min_c U_c], where only the upper bounds are corrected for
    the number of classes. No bootstrap correction is applied: at ties it removes less than half of the bias.

    Args:
        counts: counts of C classes; absent classes are excluded, from the split estimate also classes with one image.
        alpha: 1 minus the coverage of the interval.
        splits: number of random halvings averaged in the split estimate.
        seed: seed of the halvings.

    Raises:
        ClasswiseError: if no class has an image, or ``splits`` is below 1.
    """
    label, plug_in = worst_class(counts.accuracy)
    return Minimum(label, plug_in, _split_estimate(counts, splits, seed), *lowest_interval(counts, alpha))


def _split_estimate(counts: ClassCounts, splits: int, seed: int) -> float:
    """Mean over stratified halvings: select the lowest class on one half, evaluate it on the other, and vice versa."""
    usable = counts.count >= 2
    if not usable.any():
        return float("nan")
    right, wrong = counts.correct[usable], counts.wrong[usable]
    half = (right + wrong) // 2
    # The number of correct predictions in a random half is hypergeometric, so the images are not needed.
    in_half = np.random.default_rng(seed).hypergeometric(right, wrong, half, size=(splits, len(half)))
    one, two = in_half / half, (right - in_half) / (right + wrong - half)
    return float((_accuracy_of_lowest(one, two).mean() + _accuracy_of_lowest(two, one).mean()) / 2)


def _accuracy_of_lowest(selection: FloatArray, evaluation: FloatArray) -> FloatArray:
    """(splits,) accuracy in ``evaluation`` of the class that is lowest in ``selection``, averaged over ties."""
    lowest = selection == selection.min(axis=1, keepdims=True)
    return ratio((lowest * evaluation).sum(axis=1), lowest.sum(axis=1))


def split_end(counts: BoundedCounts, alpha: float) -> Bounds[float]:
    """The split estimate; it depends on random halves, so no bound is known unless every image is evaluated."""
    value = minimum(counts.low, alpha).split if counts.complete else math.nan
    return Bounds(value, value)


WORST = Metric(
    "worst",
    lambda counts: worst_class(counts.accuracy).accuracy,
    title="worst class",
    about="lowest class accuracy",
    rational=True,
    interval=worst_estimate,
    bounds=worst_bounds,
    ends={
        "low": functools.partial(worst_end, end=0),
        "high": functools.partial(worst_end, end=1),
        "split": split_end,
    },
)


@checked
def worst_share(accuracy: ArrayLike, share: float) -> float:
    """The mean accuracy of the lowest ceil(``share`` C) classes (cfa23 Appendix C.1: the worst 20 % of 200 classes).

    Args:
        accuracy: (C,) fractions.
        share: share of the classes, in (0, 1].

    Raises:
        ClasswiseError: if ``share`` is out of range.

    Example:
        >>> from classwise import metrics
        >>> metrics.worst_share([0.9, 0.5, 0.1, 0.3, 0.7], share=0.4)
        0.2
    """
    present = np.sort(present_accuracies(accuracy))
    return float(present[: classes_of_share(len(present), share)].mean())


@checked
def classes_of_share(classes: int, share: float) -> int:
    """The number of classes in a share of them, rounded up: ceil(``share`` C).

    Raises:
        ClasswiseError: if ``share`` is out of range.
    """
    if not 0 < share <= 1:
        raise ClasswiseError(f"worst share {share}: must be a share of the classes in (0, 1], such as 0.2")
    # 0.07 * 100 is slightly above 7 in floating point, which must not add an eighth class.
    return math.ceil(share * classes - 1e-9)


def worst20_estimate(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The mean accuracy of the lowest fifth of the classes, with the interval of `lowest_interval`."""
    number = classes_of_share(int(counts.present.sum()), FIFTH)
    return Estimate(worst_share(counts.accuracy, FIFTH), *lowest_interval(counts, alpha, number=number))


def worst20_bounds(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the mean of the lowest fifth of the class accuracies."""
    low, high, whole, _ = counts.scaled
    lowest = classes_of_share(len(low), FIFTH)
    least, most = (Fraction(sum(sorted(ends)[:lowest]), whole * lowest) for ends in (low, high))
    return Bounds(least, most)


WORST20 = Metric(
    "worst20",
    lambda counts: worst_share(counts.accuracy, FIFTH),
    title="worst 20 %",
    about="mean over the 20 % of classes with the lowest accuracy",
    rational=True,
    interval=worst20_estimate,
    bounds=worst20_bounds,
)


def best_estimate(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """The highest class accuracy, whichever class it is, with 1 minus `lowest_interval` of the error rates."""
    errors = lowest_interval(ClassCounts(counts.count, counts.wrong), alpha)
    return Estimate(float(np.nanmax(counts.accuracy)), 1 - errors[1], 1 - errors[0])
