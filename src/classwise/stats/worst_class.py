"""Inference about the worst class: the classes that may be the worst (its accuracy: `classwise.stats.metrics.lowest`).

The class with the lowest accuracy on a finite test set is often not the true worst class, and its accuracy there is
biased low because of the selection. All results refer to new images and a fixed model (population P).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special

from classwise.core.settings.arguments import Level, checked
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray

BLOCK_CELLS = 1 << 20
"""Maximal number of pairwise comparisons in memory at once."""


@checked
def significantly_above(counts: ClassCounts, alpha: Level = 0.05) -> BoolArray:
    """Test for every pair of classes whether the accuracy of one is significantly above that of the other.

    One-sided exact tests (Fisher 1935), each at level alpha / (C-1) for C classes with images. A normal test would not
    do at the level of many classes: of 1,000 classes that tie at 90 %, it excludes one of 10,000 images in a third of
    all samples, if the others have 50.

    Args:
        counts: counts of C classes.
        alpha: the sum of the levels of the C-1 tests of one class against the others.

    Returns:
        (C, C) true where the class of the row is above that of the column; false for absent classes.
    """
    above, pair = _distinct_above(counts, alpha)
    present = np.flatnonzero(counts.present)
    significant = np.zeros((counts.num_classes, counts.num_classes), dtype=np.bool_)
    significant[np.ix_(present, present)] = above[np.ix_(pair, pair)]
    return significant


def _distinct_above(counts: ClassCounts, alpha: float) -> tuple[BoolArray, IntArray]:
    """`significantly_above` for the D distinct pairs (correct, wrong) of counts among the classes with images.

    Of thousands of classes most have the same counts as others, so that D is far smaller than the number of classes.

    Returns:
        (D, D) results of the pairs; and for each class with images, in order, the index of its pair.
    """
    level = alpha / max(int(counts.present.sum()) - 1, 1)
    cells = np.stack([counts.correct[counts.present], counts.wrong[counts.present]], axis=1)
    pairs, index = np.unique(cells, axis=0, return_inverse=True)
    right, wrong = pairs.astype(np.float64).T
    step = max(1, BLOCK_CELLS // max(len(pairs), 1))
    blocks = [_rows_above(slice(first, first + step), right, wrong, level) for first in range(0, len(pairs), step)]
    return np.concatenate(blocks) if blocks else np.zeros((0, 0), dtype=np.bool_), index.reshape(-1)


def _rows_above(rows: slice, right: FloatArray, wrong: FloatArray, level: float) -> BoolArray:
    """(rows, D) whether the pairs of counts of a block of rows are significantly above all pairs."""
    accuracy = right / (right + wrong)
    above: BoolArray = accuracy[rows, None] > accuracy
    row, column = np.nonzero(above)
    first = row + (rows.start or 0)
    above[row, column] = _is_significant(right[first], wrong[first], right[column], wrong[column], level)
    return above


def _is_significant(
    right: FloatArray, wrong: FloatArray, other_right: FloatArray, other_wrong: FloatArray, level: float
) -> BoolArray:
    """Whether the one-sided p-values (P,) of Fisher's exact test are below ``level``; accuracies are above the others'.

    The p-value is the sum of the probabilities, given all margins, of at least ``right`` correct of these images. The
    ratio of one probability to the one before decreases, so the sum is at least its first term, and at most that of a
    geometric series with the first ratio. Only where these bounds do not decide are the terms added.
    """
    images, all_right, all_wrong = right + wrong, right + other_right, wrong + other_wrong
    term = np.exp(
        _log_binomial(all_right, right) + _log_binomial(all_wrong, wrong) - _log_binomial(all_right + all_wrong, images)
    )
    quotient = wrong * other_right / ((right + 1) * (other_wrong + 1))
    significant: BoolArray = term < level * (1 - quotient)
    unclear = np.flatnonzero((term < level) & ~significant)
    cells = (values[unclear] for values in (term, right, wrong, other_right, other_wrong))
    term, right, wrong, other_right, other_wrong = cells
    tail, more = term.copy(), 1.0
    while (term > np.finfo(np.float64).eps * tail).any():
        # P(X = k + 1) / P(X = k); zero once all images, or all correct ones, are used
        term = term * (wrong - more + 1) * (other_right - more + 1) / ((right + more) * (other_wrong + more))
        tail, more = tail + term, more + 1
    significant[unclear] = tail < level
    return significant


def _log_binomial(n: FloatArray, k: FloatArray) -> FloatArray:
    result: FloatArray = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    return result


@checked
def possibly_worst(counts: ClassCounts, alpha: Level = 0.05) -> BoolArray:
    """Confidence set of the worst class, with coverage of at least 1 - alpha.

    A class is excluded if it is `significantly_above` some other class.

    Args:
        counts: counts of C classes.
        alpha: the probability that the true worst class is excluded.

    Returns:
        (C,) true for the classes of the set; absent classes are false, the lowest class is always true.
    """
    above, pair = _distinct_above(counts, alpha)
    possible = np.zeros(counts.num_classes, dtype=np.bool_)
    possible[counts.present] = ~np.any(above, axis=1, keepdims=True)[pair, 0]
    return possible


@checked
def above_any(counts: ClassCounts, labels: Sequence[int], others: Sequence[int], alpha: Level = 0.05) -> BoolArray:
    """Test whether each of the classes ``labels`` is `significantly_above` at least one of ``others``: (labels,)."""
    above, present_pair = _distinct_above(counts, alpha)
    pair = np.zeros(counts.num_classes, dtype=np.int64)
    pair[counts.present] = present_pair
    return np.asarray(above[np.ix_(pair[list(labels)], np.unique(pair[list(others)]))].any(axis=1))


@checked
def possibly_best(counts: ClassCounts, alpha: Level = 0.05) -> BoolArray:
    """Confidence set of the best class: `possibly_worst` with correct and wrong exchanged."""
    return possibly_worst(ClassCounts(counts.count, counts.wrong), alpha)
