"""Bootstrap over images, stratified by class: class accuracies on new images of the same classes (population P).

Images are resampled within each class, with all outcomes of an image together. Differences between attacks, models or
epochs on the same images are therefore paired. Only counts are sampled: the cost grows with the number of distinct
outcome patterns, not with images times resamples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.stats.counts import BoolArray, FloatArray, class_labels, outcomes
from classwise.stats.intervals import Estimate, clopper_pearson, two_sided_z

RESAMPLES = 2000
"""The default number of resamples."""


def halves(labels: ArrayLike, seed: int = 0) -> BoolArray:
    """Split images into two random halves with equal shares of each class, for a selection on one of them.

    Args:
        labels: (N,) integers.
        seed: seed of the split.

    Returns:
        (N,) true for the images of the first half.
    """
    index = np.asarray(labels)
    keys = np.random.default_rng(seed).permutation(len(index))
    order = np.lexsort((keys, index))
    first = np.zeros(len(index), dtype=np.bool_)
    first[order[::2]] = True
    return first


def resampled_accuracies(
    correct: ArrayLike, labels: ArrayLike, num_classes: int, *, resamples: int = RESAMPLES, seed: int = 0
) -> FloatArray:
    """Class accuracies on bootstrap resamples of the images.

    Args:
        correct: (A, N) true where prediction a (of a model, attack or epoch) is correct on an image.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C.
        resamples: R.
        seed: seed of the resampling.

    Returns:
        (R, A, C) fractions; NaN for absent classes.

    Raises:
        ClasswiseError: if a label is out of range, or the lengths differ.
    """
    index = class_labels(labels, num_classes)
    right = outcomes(correct, len(index))
    if right.ndim != 2:
        raise ClasswiseError(f"correct: expected shape (predictions, images), got {right.shape}")
    generator = np.random.default_rng(seed)
    accuracies = np.full((resamples, len(right), num_classes), np.nan)
    for label in np.unique(index):
        patterns, sizes = np.unique(right[:, index == label].T, axis=0, return_counts=True)
        counts = generator.multinomial(sizes.sum(), sizes / sizes.sum(), size=resamples)
        accuracies[:, :, label] = counts @ patterns / sizes.sum()
    return accuracies


@checked
def percentiles(value: float, samples: ArrayLike, alpha: Level = 0.05) -> Estimate:
    """A number with the percentile interval (Efron 1979) of its resampled values; NaN among them are excluded.

    For a biased plug-in estimate (a maximum or a variance over classes) the bias enters the interval twice. Where that
    matters, the docstring of the analysis mentions it. For correlations, see `classwise.stats.correlations`.
    """
    known = np.asarray(samples, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not known.size:
        return Estimate(value, float("nan"), float("nan"))
    low, high = np.quantile(known, [alpha / 2, 1 - alpha / 2])
    return Estimate(value, float(low), float(high))


@checked
def share_of_dependent(values: ArrayLike, without: ArrayLike, alpha: Level = 0.05) -> Estimate:
    """The mean of dependent values in 0 .. 1, with the interval of a proportion of fewer, independent ones.

    Korn and Graubard (1998): the variance of the mean is estimated by the jackknife that leaves out one group of values
    at a time, which gives the number of independent values of the same variance, at most N. It is reduced by the ratio
    of the squared quantiles of the normal distribution and Student's t with G - 1 degrees, and enters the interval of
    `clopper_pearson`.

    Args:
        values: (N,) numbers in 0 .. 1, such as shares of an image's neighbours.
        without: (G,) the mean without each of G groups of about equal size, computed as if these did not exist.
        alpha: 1 minus the coverage.

    Raises:
        ClasswiseError: if there are no values, or fewer than two groups.

    Example:
        >>> share_of_dependent([0.5] * 400, [0.48, 0.5, 0.52, 0.5])  # doctest: +ELLIPSIS
        Estimate(value=0.5, low=0.4..., high=0.5...)
    """
    shares, means = np.asarray(values, dtype=np.float64), np.asarray(without, dtype=np.float64)
    if not shares.size or means.size < 2:
        raise ClasswiseError(f"{shares.size} values and {means.size} groups: one value and two groups are required")
    groups, value, number, centre = len(means), float(shares.mean()), float(len(shares)), float(means.mean())
    variance = (groups - 1) / groups * float(((means - centre) ** 2).sum())
    if variance > 0:
        quantile = float(special.stdtrit(groups - 1, 1 - alpha / 2))
        number = min(number, centre * (1 - centre) / variance * (two_sided_z(alpha) / quantile) ** 2)
    return Estimate(value, *(float(end) for end in clopper_pearson(value * number, number, alpha)))
