"""The worst class: which classes may it be, and how bad is it?

The class that looks worst on a finite test set is often not the worst one, and its accuracy there is too low on
average: it was chosen for being low. Everything here is about new images and a fixed model (population P).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray, ratio
from classwise.stats.intervals import checked_level, class_intervals
from classwise.stats.metrics import worst_class

FEW = 5
"""With a cell below this, two classes are compared by Fisher's exact test."""
BLOCK_CELLS = 1 << 20
"""Comparisons of two classes that are in memory at once."""


def significantly_above(counts: ClassCounts, alpha: float = 0.05) -> BoolArray:
    """Which classes are significantly above which others.

    One-sided test of two shares with pooled variance, or Fisher's exact test where one of the four cells is below 5,
    each at level alpha / (C-1) for C classes with images.

    Args:
        counts: images and right answers of C classes.
        alpha: the sum of the levels of the C-1 tests of one class against each other.

    Returns:
        (C, C) true where the row's class is above the column's; false for absent classes.
    """
    above, place = _distinct_above(counts, alpha)
    present = np.flatnonzero(counts.present)
    found = np.zeros((counts.num_classes, counts.num_classes), dtype=np.bool_)
    found[np.ix_(present, present)] = above[np.ix_(place, place)]
    return found


def _distinct_above(counts: ClassCounts, alpha: float) -> tuple[BoolArray, IntArray]:
    """`significantly_above` for the D distinct pairs of right and wrong answers among the classes with images.

    Of thousands of classes most share their counts with others, so that D is far smaller than their number.

    Returns:
        (D, D) which pairs are above which; and for each class with images, in their order, its pair.
    """
    level = checked_level(alpha) / max(int(counts.present.sum()) - 1, 1)
    cells = np.stack([counts.correct[counts.present], counts.wrong[counts.present]], axis=1)
    pairs, place = np.unique(cells, axis=0, return_inverse=True)
    right, wrong = pairs.astype(np.float64).T
    step = max(1, BLOCK_CELLS // max(len(pairs), 1))
    blocks = [_rows_above(slice(first, first + step), right, wrong, level) for first in range(0, len(pairs), step)]
    return np.concatenate(blocks) if blocks else np.zeros((0, 0), dtype=np.bool_), place.reshape(-1)


def _rows_above(rows: slice, right: FloatArray, wrong: FloatArray, level: float) -> BoolArray:
    """(rows, D): which of some pairs of counts are significantly above which of all."""
    images, smallest = right + wrong, np.minimum(right, wrong)
    accuracy = right / images
    mine_right, mine_images, mine_accuracy = (values[rows, None] for values in (right, images, accuracy))

    pooled = (mine_right + right) / (mine_images + images)
    error = np.sqrt(pooled * (1 - pooled) * (1 / mine_images + 1 / images))
    above: BoolArray = ratio(mine_accuracy - accuracy, error) > special.ndtri(1 - level)

    few = np.minimum(smallest[rows, None], smallest) < FEW
    mine, other = np.nonzero(few & (mine_accuracy > accuracy))
    own = mine + (rows.start or 0)
    tail = stats.hypergeom.sf(right[own] - 1, images[own] + images[other], right[own] + right[other], images[own])
    above[mine, other] = tail < level
    return above


def possibly_worst(counts: ClassCounts, alpha: float = 0.05) -> BoolArray:
    """The classes that may be the worst: the true worst class is among them with probability about 1 - alpha or more.

    A class is out if it is `significantly_above` some other class.

    Args:
        counts: images and right answers of C classes.
        alpha: the probability of losing the true worst class.

    Returns:
        (C,) true for the classes that stay; absent classes are false, the lowest class is always true.
    """
    above, place = _distinct_above(counts, alpha)
    kept = np.zeros(counts.num_classes, dtype=np.bool_)
    kept[counts.present] = ~np.any(above, axis=1, keepdims=True)[place, 0]
    return kept


def above_any(counts: ClassCounts, labels: Sequence[int], others: Sequence[int], alpha: float = 0.05) -> BoolArray:
    """Whether each of some classes with images is `significantly_above` at least one of some others: (labels,)."""
    above, place = _distinct_above(counts, alpha)
    pair = np.zeros(counts.num_classes, dtype=np.int64)
    pair[counts.present] = place
    return np.asarray(above[np.ix_(pair[list(labels)], np.unique(pair[list(others)]))].any(axis=1))


def possibly_best(counts: ClassCounts, alpha: float = 0.05) -> BoolArray:
    """The classes that may be the best: `possibly_worst` with right and wrong exchanged."""
    return possibly_worst(ClassCounts(counts.count, counts.wrong), alpha)


class Minimum(NamedTuple):
    """The accuracy of the worst class.

    Attributes:
        label: the class that is lowest on these images.
        plug_in: its accuracy on these images: too low on average.
        split: chosen on one half of the images and scored on the other: too high on average. NaN if no class has two
            images.
        low: lower end of the interval for the true minimum.
        high: upper end.
    """

    label: int
    plug_in: float
    split: float
    low: float
    high: float


def minimum(counts: ClassCounts, alpha: float = 0.05, *, splits: int = 10, seed: int = 0) -> Minimum:
    """How accurate is the worst class?

    The plug-in and the split estimate bracket the truth in expectation. The interval is [min_c L_c, min_c U_c] with
    simultaneous bounds. No bootstrap correction: at ties it removes less than half of the bias.

    Args:
        counts: images and right answers of C classes; absent classes are left out, and the split estimate leaves out
            classes with a single image.
        alpha: 1 minus the coverage of the interval.
        splits: random halvings over which the split estimate is a mean.
        seed: of the halvings.

    Raises:
        ClasswiseError: if no class has an image, or ``splits`` is below 1.
    """
    if splits < 1:
        raise ClasswiseError(f"splits {splits}: the split estimate needs at least 1")
    label, plug_in = worst_class(counts.accuracy)
    low, high = class_intervals(counts, alpha, simultaneous=True)
    return Minimum(label, plug_in, _split_estimate(counts, splits, seed), float(np.nanmin(low)), float(np.nanmin(high)))


def _split_estimate(counts: ClassCounts, splits: int, seed: int) -> float:
    """Mean over stratified halvings of: choose the lowest class on one half, score it on the other, swap."""
    usable = counts.count >= 2
    if not usable.any():
        return float("nan")
    right, wrong = counts.correct[usable], counts.wrong[usable]
    half = (right + wrong) // 2
    # How many right answers fall into a random half is hypergeometric, so the images themselves are not needed.
    drawn = np.random.default_rng(seed).hypergeometric(right, wrong, half, size=(splits, len(half)))
    one, two = drawn / half, (right - drawn) / (right + wrong - half)
    return float((_score_of_lowest(one, two).mean() + _score_of_lowest(two, one).mean()) / 2)


def _score_of_lowest(choose: FloatArray, score: FloatArray) -> FloatArray:
    """(splits,): the score of the class that is lowest in ``choose``, averaged over ties."""
    lowest = choose == choose.min(axis=1, keepdims=True)
    return ratio((lowest * score).sum(axis=1), lowest.sum(axis=1))
