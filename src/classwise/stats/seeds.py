"""Several training runs that differ in the seed, judged on the same images.

Population T: new images and new training seeds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.errors import UserError
from classwise.stats.counts import BoolArray, FloatArray, IntArray, class_labels, outcomes, ratio
from classwise.stats.intervals import Estimate, checked_level, score_interval, two_sided_z


class SeedMeans(NamedTuple):
    """Mean accuracy over seeds and images of each class; every field is a (C,) array, NaN for absent classes.

    Attributes:
        mean: a fraction.
        variance: of that mean, for new seeds and new images; NaN for a class with a single image.
        degrees: degrees of freedom of the variance (Satterthwaite), at least S - 1.
        low: lower end of the interval.
        high: upper end.
    """

    mean: FloatArray
    variance: FloatArray
    degrees: FloatArray
    low: FloatArray
    high: FloatArray


def mean_over_seeds(correct: ArrayLike, labels: ArrayLike, num_classes: int, alpha: float = 0.05) -> SeedMeans:
    """The accuracy of each class over S seeds and its n images, with an interval for new seeds and images.

    Seeds and images are crossed, a two-way table without replication, in each class:
    Var(mean) = (MS_seed + MS_image - MS_res) / (S n), at least MS_res / (S n). The interval is Wilson's with the
    count p(1-p)/Var in place of n and the t quantile in place of z (after Korn and Graubard 1998), so that it stays in
    [0, 1]. Where every answer is right, or every one wrong, no variance can be seen and the count is the n images.

    For the overall accuracy give labels of zero and one class.

    Args:
        correct: (S, N) true where the run of a seed is right on an image; two seeds or more.
        labels: (N,) whole numbers in 0 .. C-1.
        num_classes: C.
        alpha: 1 minus the coverage.

    Raises:
        UserError: if there is a single seed, a label is out of range, or the lengths differ.
    """
    checked_level(alpha)
    right, index = _runs(correct, labels, num_classes)
    seeds = len(right)
    count = np.bincount(index, minlength=num_classes).astype(np.float64)
    by_seed = ratio(_sums_by_class(right, index, num_classes), count)
    mean = np.asarray(by_seed.mean(axis=0))

    # The sums of squares of the two-way table; answers are 0 or 1, so the total is S n p (1 - p).
    seed_squares = count * ((by_seed - mean) ** 2).sum(axis=0)
    deviation = (right.mean(axis=0) - mean[index]) ** 2
    image_squares = seeds * np.bincount(index, weights=deviation, minlength=num_classes)
    residual_squares = np.maximum(seeds * count * mean * (1 - mean) - seed_squares - image_squares, 0)

    seed_degrees, image_degrees = seeds - 1.0, count - 1
    residual_degrees = seed_degrees * image_degrees
    ms_seed = seed_squares / seed_degrees
    ms_image, ms_residual = ratio(image_squares, image_degrees), ratio(residual_squares, residual_degrees)

    combined = ms_seed + ms_image - ms_residual
    floored = combined < ms_residual
    variance = np.where(floored, ms_residual, combined) / (seeds * count.clip(min=1))
    spread = ms_seed**2 / seed_degrees + ratio(ms_image**2, image_degrees) + ratio(ms_residual**2, residual_degrees)
    # The subtraction can push the approximation below its smallest part, which would mean nothing.
    degrees = np.where(floored, residual_degrees, np.maximum(ratio(combined**2, spread), seed_degrees))

    seen = variance > 0
    effective = np.where(seen, ratio(mean * (1 - mean), variance), np.where(np.isnan(variance), np.nan, count))
    quantile = special.stdtrit(np.where(seen, degrees, np.maximum(image_degrees, 1)), 1 - alpha / 2)
    low, high = score_interval(mean, effective, quantile)
    return SeedMeans(mean, variance, degrees, low, high)


def worst_over_seeds(
    correct: ArrayLike,
    labels: ArrayLike,
    num_classes: int,
    alpha: float = 0.05,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """The worst-class accuracy that a run has on average over seeds, with a bootstrap interval.

    Seeds are resampled, and images within each class; the images are the same for all seeds of a resample. The
    worst class may differ from seed to seed. A minimum of resampled accuracies is biased low, so where classes tie the
    percentiles themselves miss the truth nearly always. The interval is value +- r, with r the larger distance from the
    value to the two percentiles, times sqrt(S/(S-1)) since resampling S seeds shows (S-1)/S of their variance. In
    simulations it covers 92-100 % from three seeds on, and down to 87 % with two that differ much. Where no resample
    differs (the worst class all wrong, say) it is Wilson's for the images of the smallest class.

    Args:
        correct: (S, N) true where the run of a seed is right on an image; two seeds or more.
        labels: (N,) whole numbers in 0 .. C-1.
        num_classes: C; absent classes are left out.
        alpha: 1 minus the coverage.
        resamples: how many.
        seed: of the resampling.

    Raises:
        UserError: if there is a single seed, a label is out of range, the lengths differ, or ``resamples`` is below 1.
    """
    if resamples < 1:
        raise UserError(f"resamples {resamples}: the bootstrap needs at least 1, and hundreds to be of use")
    right, index = _runs(correct, labels, num_classes)
    # Images of a class that the seeds judge alike are interchangeable, so it is enough to resample how many there are
    # of each pattern of answers.
    patterns, pattern = np.unique(right, axis=1, return_inverse=True)
    table = np.bincount(index * patterns.shape[1] + pattern.ravel(), minlength=num_classes * patterns.shape[1])
    table = table.reshape(num_classes, patterns.shape[1])
    table = table[table.sum(axis=1) > 0]
    count = table.sum(axis=1)
    law, answers = table / count[:, None], patterns.T.astype(np.float64)

    z = two_sided_z(alpha)
    random = np.random.default_rng(seed)
    values = np.empty(resamples)
    for resample in range(resamples):
        accuracy = random.multinomial(count, law) @ answers / count[:, None]
        values[resample] = accuracy[:, random.integers(len(right), size=len(right))].min(axis=0).mean()
    value = float((table @ answers / count[:, None]).min(axis=0).mean())
    low, high = np.quantile(values, (alpha / 2, 1 - alpha / 2))
    if low == high == value:
        ends = score_interval(value, count.min(), z)
        return Estimate(value, float(ends.low), float(ends.high))
    reach = float(max(value - low, high - value)) * math.sqrt(len(right) / (len(right) - 1))
    return Estimate(value, max(value - reach, 0.0), min(value + reach, 1.0))


def _runs(correct: ArrayLike, labels: ArrayLike, num_classes: int) -> tuple[BoolArray, IntArray]:
    index = class_labels(labels, num_classes)
    right = outcomes(correct, len(index))
    if right.ndim != 2 or len(right) < 2:
        raise UserError(f"correct: expected shape (seeds, images) with two seeds or more, got {right.shape}")
    if not len(index):
        raise UserError("correct: no images, so there is nothing to measure")
    return right, index


def _sums_by_class(right: BoolArray, index: IntArray, num_classes: int) -> IntArray:
    """(S, C): the right answers of each seed in each class."""
    seed, image = np.nonzero(right)
    flat = np.bincount(seed * num_classes + index[image], minlength=len(right) * num_classes)
    return flat.reshape(len(right), num_classes)
