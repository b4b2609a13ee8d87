"""The bootstrap over images, class by class: what class accuracies might have been on other images (population P).

Images are resampled within each class, and an image brings all its judgements along, so that differences between
attacks, models or epochs on shared images keep what they have in common. Only counts are drawn: the cost grows with the
distinct patterns of right and wrong, not with images times resamples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import ClassCounts, FloatArray, class_labels, outcomes, ratio
from classwise.stats.intervals import Estimate, checked_level

RESAMPLES = 2000


def resampled_accuracies(
    correct: ArrayLike, labels: ArrayLike, num_classes: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> FloatArray:
    """Class accuracies on resampled images.

    Args:
        correct: (A, N) true where judgement a is right on an image.
        labels: (N,) whole numbers in 0 .. C-1.
        num_classes: C.
        resamples: R.
        seed: of the draws.

    Returns:
        (R, A, C) fractions; NaN for absent classes.

    Raises:
        ClasswiseError: if a label is out of range, or the lengths differ.
    """
    index = class_labels(labels, num_classes)
    right = outcomes(correct, len(index))
    if right.ndim != 2:
        raise ClasswiseError(f"correct: expected shape (judgements, images), got {right.shape}")
    generator = np.random.default_rng(seed)
    found = np.full((resamples, len(right), num_classes), np.nan)
    for label in np.unique(index):
        patterns, sizes = np.unique(right[:, index == label].T, axis=0, return_counts=True)
        drawn = generator.multinomial(sizes.sum(), sizes / sizes.sum(), size=resamples)
        found[:, :, label] = drawn @ patterns / sizes.sum()
    return found


def resampled_means(
    values: ArrayLike, labels: ArrayLike, num_classes: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> FloatArray:
    """Class means of any numbers on resampled images; `resampled_accuracies` is faster for right and wrong.

    Args:
        values: (A, N) numbers, a row for each quantity; an image brings all of its own along.
        labels: (N,) whole numbers in 0 .. C-1.
        num_classes: C.
        resamples: R.
        seed: of the draws.

    Returns:
        (R, A, C) means; NaN for absent classes.

    Raises:
        ClasswiseError: if a label is out of range, or the lengths differ.
    """
    index, rows = class_labels(labels, num_classes), np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(index):
        raise ClasswiseError(f"values: expected shape (quantities, {len(index)}), got {rows.shape}")
    generator = np.random.default_rng(seed)
    found = np.full((resamples, len(rows), num_classes), np.nan)
    for label in np.unique(index):
        mine = rows[:, index == label]
        size = mine.shape[1]
        found[:, :, label] = generator.multinomial(size, np.full(size, 1 / size), size=resamples) @ mine.T / size
    return found


def resampled_counts(counts: ClassCounts, *, resamples: int = RESAMPLES, seed: int = 0) -> FloatArray:
    """The same of one judgement whose counts are known: (R, C) fractions; NaN for absent classes."""
    share = np.nan_to_num(counts.accuracy)
    drawn = np.random.default_rng(seed).binomial(counts.count, share, size=(resamples, counts.num_classes))
    return ratio(drawn, counts.count)


def resampled_rows(matrix: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> FloatArray:
    """Confusion counts (C, C) with the images of each row resampled: (R, C, C)."""
    counts = np.asarray(matrix, dtype=np.int64)
    generator = np.random.default_rng(seed)
    found = np.zeros((resamples, *counts.shape))
    for row, values in enumerate(counts):
        if values.sum():
            found[:, row] = generator.multinomial(values.sum(), values / values.sum(), size=resamples)
    return found


def percentiles(value: float, samples: ArrayLike, alpha: float = 0.05) -> Estimate:
    """A number with the percentile interval of its resampled values (NaN among them left out).

    The interval is that of Efron (1979). Statistics that noise pushes one way (a maximum, a variance over classes, a
    correlation) are pushed twice in it; where that matters, the docstring of the analysis says so.
    """
    known = np.asarray(samples, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not known.size:
        return Estimate(value, float("nan"), float("nan"))
    low, high = np.quantile(known, [checked_level(alpha) / 2, 1 - alpha / 2])
    return Estimate(value, float(low), float(high))
