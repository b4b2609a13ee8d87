"""Accuracy over several training runs that differ only in the seed, evaluated on the same images.

Population T: new images and new training seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import BoolArray, FloatArray, IntArray, class_labels, outcomes, ratio
from classwise.stats.intervals import Estimate, checked_level, score_interval, two_sided_z
from classwise.stats.paired import holm, mcnemar, tango
from classwise.stats.resampling import RESAMPLES, resampled_accuracies

EQUAL = 1e-9
"""Mean squares of integers with a relative difference below this are equal up to rounding."""
ROUNDING = 1e-13
"""Differences of proportions, and variances over images, below this are 0 up to rounding."""


class SeedMeans(NamedTuple):
    """Mean accuracy over seeds and images of each class; every field is a (C,) array, NaN for absent classes.

    Attributes:
        mean: mean accuracy, a fraction.
        variance: variance of ``mean`` over new seeds and new images; NaN for a class with a single image.
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
    """Mean accuracy of each class over S seeds and its n images, with an interval for new seeds and images.

    Seeds and images are crossed random effects, a two-way table without replication, in each class:
    Var(mean) = (MS_seed + MS_image - MS_res) / (S n), at least MS_res / (S n). At that minimum (as with a single
    correct prediction, where all three mean squares are equal) it has the residual degrees of freedom. The interval is
    Wilson's with the effective sample size p(1-p)/Var in place of n and the t quantile in place of z (after Korn and
    Graubard 1998), so that it lies in [0, 1]. If all predictions are correct, or all incorrect, the variance estimate
    is 0 and the sample size is n.

    For the overall accuracy, pass zeros as labels and ``num_classes=1``.

    Args:
        correct: (S, N) true where the run of a seed is correct on an image; at least two seeds.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C.
        alpha: 1 minus the coverage.

    Raises:
        ClasswiseError: if there is a single seed, a label is out of range, or the lengths differ.
    """
    checked_level(alpha)
    right, index = _runs(correct, labels, num_classes)
    seeds = len(right)
    table = _two_way(right, index, num_classes)
    count, mean, ms_seed, ms_image, ms_residual = table
    seed_degrees, image_degrees = seeds - 1.0, count - 1
    residual_degrees = seed_degrees * image_degrees

    combined = ms_seed + ms_image - ms_residual
    floored = combined <= ms_residual * (1 + EQUAL)
    variance = np.where(floored, ms_residual, combined) / (seeds * count.clip(min=1))
    spread = ms_seed**2 / seed_degrees + ratio(ms_image**2, image_degrees) + ratio(ms_residual**2, residual_degrees)
    # Because of the subtraction, the approximation can fall below the smallest of its degrees of freedom.
    degrees = np.where(floored, residual_degrees, np.maximum(ratio(combined**2, spread), seed_degrees))

    positive = variance > 0
    effective = np.where(positive, ratio(mean * (1 - mean), variance), np.where(np.isnan(variance), np.nan, count))
    quantile = special.stdtrit(np.where(positive, degrees, np.maximum(image_degrees, 1)), 1 - alpha / 2)
    low, high = score_interval(mean, effective, quantile)
    return SeedMeans(mean, variance, degrees, low, high)


class SeedDifferences(NamedTuple):
    """Mean accuracy of one method minus that of another; every field is a (C,) array, NaN for absent classes.

    Attributes:
        difference: difference of the means over all seeds, in -1 .. 1.
        variance: variance of that difference; NaN for a class with a single image.
        degrees: degrees of freedom of the variance.
        low: lower end of the interval.
        high: upper end.
        p_value: two-sided p-value of no difference.
        adjusted: p-values with Holm's correction over the classes.
    """

    difference: FloatArray
    variance: FloatArray
    degrees: FloatArray
    low: FloatArray
    high: FloatArray
    p_value: FloatArray
    adjusted: FloatArray


def difference_over_seeds(
    first: ArrayLike, second: ArrayLike, labels: ArrayLike, num_classes: int, alpha: float = 0.05, *, paired: bool
) -> SeedDifferences:
    """Compare two methods over all their training seeds on the same images, per class.

    Seeds and images are crossed random effects. The variance of the difference of the means is the sum of

    - images: the variance over images of an image's mean difference, over n;
    - seeds: (MS_seed - MS_res)/(S n), at least 0, from the two-way table of the differences per seed (paired), or from
      the table of each method (unpaired; 0 for a method with one seed, which is treated as fixed).

    The test is Student's with 1/(x/d + (1 - x)/(n - 1)) degrees of freedom, where x is the share of the variance that
    is estimated over seeds and d the seeds' degrees of freedom (after Welch and Satterthwaite, for two tables).
    Satterthwaite's own formula rejects too often because x is uncertain. In simulations of equal methods (classes of 50
    to 1,000 images) the test rejects 1-6 % at level 5 %; with two pairs of seeds, or one seed against two, up to 9 %.
    If all differences are equal, the variance estimate is 0: the interval is Tango's and the test McNemar's.

    Args:
        first: (S, N) true where the run of a seed of the first method is correct on an image.
        second: (T, N) the same for the second method; S or T is at least 2.
        labels: (N,) integers in 0 .. C-1; zeros for the overall accuracy.
        num_classes: C.
        alpha: 1 minus the coverage of the intervals.
        paired: whether run s of both methods has the same seed; then S = T, and differences are taken per seed.

    Raises:
        ClasswiseError: if each method has one seed, paired methods differ in the number of seeds, a label is out of
            range, or the lengths differ.
    """
    checked_level(alpha)
    runs_a, runs_b, index = _both(first, second, labels, num_classes, paired=paired)
    if paired:
        tables = [runs_a.astype(np.float64) - runs_b]
    else:
        tables = [runs.astype(np.float64) for runs in (runs_a, runs_b) if len(runs) > 1]
    per_image = runs_a.mean(axis=0) - runs_b.mean(axis=0)
    count = np.bincount(index, minlength=num_classes).astype(np.float64)
    difference = ratio(np.bincount(index, weights=per_image, minlength=num_classes), count)
    scatter = np.bincount(index, weights=(per_image - difference[index]) ** 2, minlength=num_classes)
    images = ratio(ratio(scatter, count - 1), count)

    over_seeds, noise = [], []
    for table in tables:
        squares = _two_way(table, index, num_classes)
        over_seeds.append(ratio(squares.ms_seed, len(table) * count))
        noise.append(ratio(squares.ms_residual, len(table) * count))
    degrees_of = [len(table) - 1.0 for table in tables]
    images = np.maximum(images, np.sum(noise, axis=0))
    variance, degrees = _combined(images, count - 1, over_seeds, noise, degrees_of)

    positive = variance * count > ROUNDING
    error = np.sqrt(variance)
    t = ratio(difference, np.where(positive, error, 1.0))
    half_width = special.stdtrit(np.where(positive, degrees, 1.0), 1 - alpha / 2) * error
    p_value = 2 * special.stdtr(np.where(positive, degrees, 1.0), -np.abs(t))
    # If the variance is 0, the difference is -1, 0 or 1 on every image.
    constant = ~positive & ~np.isnan(variance) & (count > 0)
    up, down = (np.where(constant & (difference * sign > 0.5), count, 0).astype(np.int64) for sign in (1, -1))
    exact = tango(up, down, count, alpha)
    low = np.where(constant, exact.low, np.maximum(difference - half_width, -1.0))
    high = np.where(constant, exact.high, np.minimum(difference + half_width, 1.0))
    p_value = np.where(constant, mcnemar(up, down), np.where(positive, p_value, np.nan))
    return SeedDifferences(difference, variance, degrees, low, high, p_value, holm(p_value))


def worst_difference_over_seeds(
    first: ArrayLike,
    second: ArrayLike,
    labels: ArrayLike,
    num_classes: int,
    alpha: float = 0.05,
    *,
    paired: bool,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Mean over seeds of the worst-class accuracy of a run, of one method minus that of another.

    The worst class may differ between runs and methods. Images are resampled within each class, jointly for all runs.
    The larger distance from the value to the two percentiles is the error of the images, because a minimum is biased
    and a percentile interval would not cover the truth. The variance over seeds of the minima of the runs is added, and
    the quantile is Student's with the degrees of freedom of `difference_over_seeds`.

    Args:
        first: (S, N) true where the run of a seed of the first method is correct on an image.
        second: (T, N) the same for the second method; S or T is at least 2.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C; absent classes are excluded.
        alpha: 1 minus the coverage.
        paired: whether run s of both methods has the same seed; then S = T.
        resamples: number of resamples.
        seed: seed of the resampling.

    Raises:
        ClasswiseError: if each method has one seed, paired methods differ in the number of seeds, a label is out of
            range, or the lengths differ.
    """
    z = two_sided_z(alpha)
    runs_a, runs_b, index = _both(first, second, labels, num_classes, paired=paired)
    runs = np.concatenate([runs_a, runs_b])
    accuracy = ratio(_sums_by_class(runs, index, num_classes), np.bincount(index, minlength=num_classes))
    resampled = resampled_accuracies(runs, index, num_classes, resamples=resamples, seed=seed)
    minima, resampled_minima = np.nanmin(accuracy, axis=1), np.nanmin(resampled, axis=2)
    a, b = slice(len(runs_a)), slice(len(runs_a), None)
    value = float(minima[a].mean() - minima[b].mean())
    values = resampled_minima[:, a].mean(axis=1) - resampled_minima[:, b].mean(axis=1)
    low, high = np.quantile(values, (alpha / 2, 1 - alpha / 2))
    images = (max(value - low, high - value) / z) ** 2
    if paired:
        tables = [(minima[a] - minima[b], resampled_minima[:, a] - resampled_minima[:, b])]
    else:
        tables = [(minima[method], resampled_minima[:, method]) for method in (a, b) if len(minima[method]) > 1]
    over_seeds = [np.asarray(observed.var(ddof=1) / len(observed)) for observed, _ in tables]
    noise = [np.asarray(_interaction(*table) / len(table[0])) for table in tables]
    smallest = float(np.bincount(index)[np.bincount(index) > 0].min())
    variance, degrees = _combined(
        np.array(images), np.array(smallest - 1), over_seeds, noise, [len(observed) - 1.0 for observed, _ in tables]
    )
    if not variance > ROUNDING**2:
        # No resample and no seed differs: use the interval of the smallest class without discordant images.
        up, down = (np.array([smallest if sign * value > 0.5 else 0.0]) for sign in (1, -1))
        ends = tango(up, down, np.array([smallest]), alpha)
        return Estimate(value, min(value, float(ends.low[0])), max(value, float(ends.high[0])))
    half_width = float(special.stdtrit(degrees, 1 - alpha / 2) * np.sqrt(variance))
    return Estimate(value, max(value - half_width, -1.0), min(value + half_width, 1.0))


def _combined(
    images: FloatArray,
    image_degrees: FloatArray,
    over_seeds: Sequence[FloatArray],
    noise: Sequence[FloatArray],
    seed_degrees: Sequence[float],
) -> tuple[FloatArray, FloatArray]:
    """Variance of a difference and its degrees of freedom; see `difference_over_seeds`.

    Args:
        images: variance component of the images.
        image_degrees: degrees of freedom of ``images``.
        over_seeds: observed variances over seeds, of each table.
        noise: part of each of ``over_seeds`` that is due to the interaction of seeds and images.
        seed_degrees: degrees of freedom of each of ``over_seeds``.
    """
    excess = [np.maximum(observed - residual, 0) for observed, residual in zip(over_seeds, noise, strict=True)]
    variance = images + np.sum(excess, axis=0)
    total = np.sum(over_seeds, axis=0)
    squares = np.sum([part**2 / degrees for part, degrees in zip(over_seeds, seed_degrees, strict=True)], axis=0)
    share = np.clip(ratio(total, variance), 0, 1)
    # share / d, where d = total^2 / squares
    inverse = np.nan_to_num(share * ratio(squares, total**2)) + (1 - share) / np.maximum(image_degrees, 1)
    return variance, ratio(1.0, inverse)


def _interaction(minima: FloatArray, resampled: FloatArray) -> float:
    """Variance of the interaction of seeds and images in the minima of runs (S,) and of their resamples (R, S)."""
    change = resampled - minima
    residual = change - change.mean(axis=1, keepdims=True)
    return float(residual.var(axis=0).sum() / (len(minima) - 1))


def worst_over_seeds(
    correct: ArrayLike,
    labels: ArrayLike,
    num_classes: int,
    alpha: float = 0.05,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Mean over seeds of the worst-class accuracy of a run, with a bootstrap interval.

    Seeds are resampled, and images within each class; the images are the same for all seeds of a resample. The worst
    class may differ between seeds. A minimum of resampled accuracies is biased low, so if classes tie, a percentile
    interval almost never covers the truth. The interval is value +- r. Its half-width r is the larger distance from the
    value to the two percentiles, times sqrt(S/(S-1)) because resampling S seeds has (S-1)/S of their variance. In
    simulations its coverage is 92-100 % for three seeds or more, and at least 87 % for two that differ much. If no
    resample differs (for example if the worst class has accuracy 0), it is Wilson's for the size of the smallest class.

    Args:
        correct: (S, N) true where the run of a seed is correct on an image; at least two seeds.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C; absent classes are excluded.
        alpha: 1 minus the coverage.
        resamples: number of resamples.
        seed: seed of the resampling.

    Raises:
        ClasswiseError: if there is a single seed, a label is out of range, the lengths differ, or ``resamples`` is
            below 1.
    """
    if resamples < 1:
        raise ClasswiseError(f"resamples {resamples}: must be at least 1, and hundreds for a useful interval")
    right, index = _runs(correct, labels, num_classes)
    z, runs = two_sided_z(alpha), len(right)
    count = np.bincount(index, minlength=num_classes)
    count = count[count > 0]
    # The minimum of a run does not depend on the other runs, so the runs can be resampled after taking it.
    minima = np.nanmin(resampled_accuracies(right, index, num_classes, resamples=resamples, seed=seed), axis=2)
    chosen = np.random.default_rng((seed, runs)).integers(runs, size=(resamples, runs))
    values = np.take_along_axis(minima, chosen, axis=1).mean(axis=1)
    accuracy = ratio(_sums_by_class(right, index, num_classes), np.bincount(index, minlength=num_classes))
    value = float(np.nanmin(accuracy, axis=1).mean())
    low, high = np.quantile(values, (alpha / 2, 1 - alpha / 2))
    if max(abs(low - value), abs(high - value)) < ROUNDING:
        ends = score_interval(value, count.min(), z)
        return Estimate(value, float(ends.low), float(ends.high))
    half_width = float(max(value - low, high - value)) * math.sqrt(len(right) / (len(right) - 1))
    return Estimate(value, max(value - half_width, 0.0), min(value + half_width, 1.0))


class _TwoWay(NamedTuple):
    """Analysis of variance of seeds and images without replication, in each class: (C,) arrays."""

    images: FloatArray
    mean: FloatArray
    ms_seed: FloatArray
    ms_image: FloatArray
    ms_residual: FloatArray


def _two_way(values: ArrayLike, index: IntArray, num_classes: int) -> _TwoWay:
    """Mean squares of (S, N) values in each class, S at least 2; NaN for classes with too few images."""
    table = np.asarray(values, dtype=np.float64)
    seeds = len(table)
    count = np.bincount(index, minlength=num_classes).astype(np.float64)
    by_seed = ratio([np.bincount(index, weights=row, minlength=num_classes) for row in table], count)
    mean = np.asarray(by_seed.mean(axis=0))
    seed_squares = count * ((by_seed - mean) ** 2).sum(axis=0)
    deviation = (table.mean(axis=0) - mean[index]) ** 2
    image_squares = seeds * np.bincount(index, weights=deviation, minlength=num_classes)
    total = np.bincount(index, weights=((table - mean[index]) ** 2).sum(axis=0), minlength=num_classes)
    residual_squares = np.maximum(total - seed_squares - image_squares, 0)
    return _TwoWay(
        count,
        mean,
        seed_squares / (seeds - 1),
        ratio(image_squares, count - 1),
        ratio(residual_squares, (seeds - 1) * (count - 1)),
    )


def _both(
    first: ArrayLike, second: ArrayLike, labels: ArrayLike, num_classes: int, *, paired: bool
) -> tuple[BoolArray, BoolArray, IntArray]:
    index = class_labels(labels, num_classes)
    runs_a, runs_b = (np.atleast_2d(outcomes(runs, len(index))) for runs in (first, second))
    if not len(index):
        raise ClasswiseError("labels: no images; a comparison requires at least one")
    if paired and len(runs_a) != len(runs_b):
        raise ClasswiseError(f"{len(runs_a)} and {len(runs_b)} seeds cannot be paired; pass paired=False")
    if max(len(runs_a), len(runs_b)) < 2:
        raise ClasswiseError(
            "one seed per method; the variance over seeds requires at least two seeds of one method "
            "(classwise.stats.paired compares two runs)"
        )
    return runs_a, runs_b, index


def _runs(correct: ArrayLike, labels: ArrayLike, num_classes: int) -> tuple[BoolArray, IntArray]:
    index = class_labels(labels, num_classes)
    right = outcomes(correct, len(index))
    if right.ndim != 2 or len(right) < 2:
        raise ClasswiseError(f"correct: expected shape (seeds, images) with at least two seeds, got {right.shape}")
    if not len(index):
        raise ClasswiseError("correct: no images; at least one is required")
    return right, index


def _sums_by_class(right: BoolArray, index: IntArray, num_classes: int) -> IntArray:
    """(S, C) number of correct predictions of each seed in each class."""
    seed, image = np.nonzero(right)
    flat = np.bincount(seed * num_classes + index[image], minlength=len(right) * num_classes)
    return flat.reshape(len(right), num_classes)
