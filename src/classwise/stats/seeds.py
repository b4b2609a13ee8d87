"""Several training runs that differ in the seed, judged on the same images.

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
"""Mean squares of whole numbers that differ relatively by less are equal but for rounding."""
ROUNDING = 1e-13
"""Differences of shares, and variances of images, below this are 0 but for rounding."""


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
    Var(mean) = (MS_seed + MS_image - MS_res) / (S n), at least MS_res / (S n); where it is not above that (as with a
    single right answer, where all three are equal) it has the residual's degrees of freedom. The interval is Wilson's
    with the count p(1-p)/Var in place of n and the t quantile in place of z (after Korn and Graubard 1998), so that it
    stays in [0, 1]. Where every answer is right, or every one wrong, no variance can be seen and the count is the n
    images.

    For the overall accuracy give labels of zero and one class.

    Args:
        correct: (S, N) true where the run of a seed is right on an image; two seeds or more.
        labels: (N,) whole numbers in 0 .. C-1.
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
    # The subtraction can push the approximation below its smallest part, which would mean nothing.
    degrees = np.where(floored, residual_degrees, np.maximum(ratio(combined**2, spread), seed_degrees))

    seen = variance > 0
    effective = np.where(seen, ratio(mean * (1 - mean), variance), np.where(np.isnan(variance), np.nan, count))
    quantile = special.stdtrit(np.where(seen, degrees, np.maximum(image_degrees, 1)), 1 - alpha / 2)
    low, high = score_interval(mean, effective, quantile)
    return SeedMeans(mean, variance, degrees, low, high)


class SeedDifferences(NamedTuple):
    """Mean accuracy of one method minus that of another; every field is a (C,) array, NaN for absent classes.

    Attributes:
        difference: over all seeds of both, in -1 .. 1.
        variance: of that difference; NaN for a class with a single image.
        degrees: degrees of freedom of the variance.
        low: lower end of the interval.
        high: upper end.
        p_value: two-sided, of no difference.
        adjusted: the p-values after Holm over the classes.
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
    """Compare two methods over all their training seeds, in every class, on the same images.

    Seeds and images are crossed random effects. The variance of the difference of the means is the sum of

    - images: the variance over images of an image's mean difference, over n;
    - seeds: (MS_seed - MS_res)/(S n), at least 0, from the two-way table of the differences seed by seed (paired), or
      from the table of each method (unpaired; nothing for a method with one seed, which is taken as fixed).

    The test is Student's with degrees 1/(x/d + (1 - x)/(n - 1)), where x is the share of the variance that is estimated
    over seeds and d the seeds' degrees of freedom (after Welch and Satterthwaite, where there are two tables).
    Satterthwaite's own formula rejects too often while x is uncertain. In simulations of equal methods (classes of 50
    to 1,000 images) it rejects 1-6 % at the level of 5 %; with two pairs of seeds, or one seed against two, up to 9 %.
    Where all differences are equal, no variance can be seen: the interval is Tango's and the test McNemar's.

    Args:
        first: (S, N) true where the run of a seed of the first method is right on an image.
        second: (T, N) the same of the second method; S or T is at least 2.
        labels: (N,) whole numbers in 0 .. C-1; zeros for the overall accuracy.
        num_classes: C.
        alpha: 1 minus the coverage of the intervals.
        paired: run s of both methods has the same seed, so S = T and differences are taken seed by seed.

    Raises:
        ClasswiseError: if there is one seed of each, paired methods differ in the number of seeds, a label is out of
            range, or the lengths differ.
    """
    checked_level(alpha)
    ours, theirs, index = _both(first, second, labels, num_classes, paired=paired)
    if paired:
        tables = [ours.astype(np.float64) - theirs]
    else:
        tables = [runs.astype(np.float64) for runs in (ours, theirs) if len(runs) > 1]
    each = ours.mean(axis=0) - theirs.mean(axis=0)
    count = np.bincount(index, minlength=num_classes).astype(np.float64)
    difference = ratio(np.bincount(index, weights=each, minlength=num_classes), count)
    scatter = np.bincount(index, weights=(each - difference[index]) ** 2, minlength=num_classes)
    images = ratio(ratio(scatter, count - 1), count)

    over_seeds, noise = [], []
    for table in tables:
        found = _two_way(table, index, num_classes)
        over_seeds.append(ratio(found.ms_seed, len(table) * count))
        noise.append(ratio(found.ms_residual, len(table) * count))
    degrees_of = [len(table) - 1.0 for table in tables]
    images = np.maximum(images, np.sum(noise, axis=0))
    variance, degrees = _combined(images, count - 1, over_seeds, noise, degrees_of)

    seen = variance * count > ROUNDING
    error = np.sqrt(variance)
    reach = special.stdtrit(np.where(seen, degrees, 1.0), 1 - alpha / 2) * error
    p_value = 2 * special.stdtr(np.where(seen, degrees, 1.0), -np.abs(ratio(difference, np.where(seen, error, 1.0))))
    # Without any variance the difference is -1, 0 or 1 on every image.
    constant = ~seen & ~np.isnan(variance) & (count > 0)
    up, down = (np.where(constant & (difference * sign > 0.5), count, 0).astype(np.int64) for sign in (1, -1))
    exact = tango(up, down, count, alpha)
    low = np.where(constant, exact.low, np.maximum(difference - reach, -1.0))
    high = np.where(constant, exact.high, np.minimum(difference + reach, 1.0))
    p_value = np.where(constant, mcnemar(up, down), np.where(seen, p_value, np.nan))
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
    """The worst-class accuracy that a run has on average over seeds, of one method minus that of another.

    The worst class may differ between runs and methods. Images are resampled within each class, jointly for all runs;
    the larger distance from the value to the two percentiles gives the error of the images (a minimum is biased, so the
    percentiles themselves would miss the truth). The seeds' variance, as seen in the minima of the runs, is added, and
    the quantile is Student's with the degrees of `difference_over_seeds`.

    Args:
        first: (S, N) true where the run of a seed of the first method is right on an image.
        second: (T, N) the same of the second method; S or T is at least 2.
        labels: (N,) whole numbers in 0 .. C-1.
        num_classes: C; absent classes are left out.
        alpha: 1 minus the coverage.
        paired: run s of both methods has the same seed, so S = T.
        resamples: how many.
        seed: of the resampling.

    Raises:
        ClasswiseError: as `difference_over_seeds` does.
    """
    z = two_sided_z(alpha)
    ours, theirs, index = _both(first, second, labels, num_classes, paired=paired)
    runs = np.concatenate([ours, theirs])
    accuracy = ratio(_sums_by_class(runs, index, num_classes), np.bincount(index, minlength=num_classes))
    resampled = resampled_accuracies(runs, index, num_classes, resamples=resamples, seed=seed)
    minima, drawn = np.nanmin(accuracy, axis=1), np.nanmin(resampled, axis=2)
    mine, other = slice(len(ours)), slice(len(ours), None)
    value = float(minima[mine].mean() - minima[other].mean())
    values = drawn[:, mine].mean(axis=1) - drawn[:, other].mean(axis=1)
    low, high = np.quantile(values, (alpha / 2, 1 - alpha / 2))
    images = (max(value - low, high - value) / z) ** 2
    if paired:
        tables = [(minima[mine] - minima[other], drawn[:, mine] - drawn[:, other])]
    else:
        tables = [(minima[each], drawn[:, each]) for each in (mine, other) if len(minima[each]) > 1]
    over_seeds = [np.asarray(least.var(ddof=1) / len(least)) for least, _ in tables]
    noise = [np.asarray(_interaction(least, again) / len(least)) for least, again in tables]
    smallest = float(np.bincount(index)[np.bincount(index) > 0].min())
    variance, degrees = _combined(
        np.array(images), np.array(smallest - 1), over_seeds, noise, [len(least) - 1.0 for least, _ in tables]
    )
    if not variance > ROUNDING**2:
        # No resample and no seed differs: as little is known as of the smallest class without a discordant image.
        up, down = (np.array([smallest if sign * value > 0.5 else 0.0]) for sign in (1, -1))
        ends = tango(up, down, np.array([smallest]), alpha)
        return Estimate(value, min(value, float(ends.low[0])), max(value, float(ends.high[0])))
    reach = float(special.stdtrit(degrees, 1 - alpha / 2) * np.sqrt(variance))
    return Estimate(value, max(value - reach, -1.0), min(value + reach, 1.0))


def _combined(
    images: FloatArray,
    image_degrees: FloatArray,
    over_seeds: Sequence[FloatArray],
    noise: Sequence[FloatArray],
    seed_degrees: Sequence[float],
) -> tuple[FloatArray, FloatArray]:
    """The variance of a difference and its degrees of freedom, from its parts; see `difference_over_seeds`.

    ``over_seeds`` are variances of means as the seeds show them, and ``noise`` what of each is of seeds times images.
    """
    excess = [np.maximum(seen - chance, 0) for seen, chance in zip(over_seeds, noise, strict=True)]
    variance = images + np.sum(excess, axis=0)
    total = np.sum(over_seeds, axis=0)
    squares = np.sum([part**2 / degrees for part, degrees in zip(over_seeds, seed_degrees, strict=True)], axis=0)
    share = np.clip(ratio(total, variance), 0, 1)
    # share / d, where d = total^2 / squares
    inverse = np.nan_to_num(share * ratio(squares, total**2)) + (1 - share) / np.maximum(image_degrees, 1)
    return variance, ratio(1.0, inverse)


def _interaction(minima: FloatArray, drawn: FloatArray) -> float:
    """The variance of a run's minimum that resampled images move apart from the other runs': (S,) and (R, S)."""
    moved = drawn - minima
    apart = moved - moved.mean(axis=1, keepdims=True)
    return float(apart.var(axis=0).sum() / (len(minima) - 1))


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
        ClasswiseError: if there is a single seed, a label is out of range, the lengths differ, or ``resamples`` is
            below 1.
    """
    if resamples < 1:
        raise ClasswiseError(f"resamples {resamples}: the bootstrap needs at least 1, and hundreds to be of use")
    right, index = _runs(correct, labels, num_classes)
    z, runs = two_sided_z(alpha), len(right)
    count = np.bincount(index, minlength=num_classes)
    count = count[count > 0]
    # A run's minimum does not depend on the other runs, so the runs are resampled after it is taken.
    minima = np.nanmin(resampled_accuracies(right, index, num_classes, resamples=resamples, seed=seed), axis=2)
    chosen = np.random.default_rng((seed, runs)).integers(runs, size=(resamples, runs))
    values = np.take_along_axis(minima, chosen, axis=1).mean(axis=1)
    accuracy = ratio(_sums_by_class(right, index, num_classes), np.bincount(index, minlength=num_classes))
    value = float(np.nanmin(accuracy, axis=1).mean())
    low, high = np.quantile(values, (alpha / 2, 1 - alpha / 2))
    if max(abs(low - value), abs(high - value)) < ROUNDING:
        ends = score_interval(value, count.min(), z)
        return Estimate(value, float(ends.low), float(ends.high))
    reach = float(max(value - low, high - value)) * math.sqrt(len(right) / (len(right) - 1))
    return Estimate(value, max(value - reach, 0.0), min(value + reach, 1.0))


class _TwoWay(NamedTuple):
    """A two-way table of seeds and images without replication, in each class: (C,) arrays."""

    images: FloatArray
    mean: FloatArray
    ms_seed: FloatArray
    ms_image: FloatArray
    ms_residual: FloatArray


def _two_way(values: ArrayLike, index: IntArray, num_classes: int) -> _TwoWay:
    """Mean squares of (S, N) values, S at least 2, whose images belong to classes; NaN where there are too few."""
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
    ours, theirs = (np.atleast_2d(outcomes(runs, len(index))) for runs in (first, second))
    if not len(index):
        raise ClasswiseError("no images, so there is nothing to compare")
    if paired and len(ours) != len(theirs):
        raise ClasswiseError(f"{len(ours)} and {len(theirs)} seeds are no pairs; give paired=False")
    if max(len(ours), len(theirs)) < 2:
        raise ClasswiseError(
            "one seed of each method shows no variance over seeds; compare the two runs on their images"
        )
    return ours, theirs, index


def _runs(correct: ArrayLike, labels: ArrayLike, num_classes: int) -> tuple[BoolArray, IntArray]:
    index = class_labels(labels, num_classes)
    right = outcomes(correct, len(index))
    if right.ndim != 2 or len(right) < 2:
        raise ClasswiseError(f"correct: expected shape (seeds, images) with two seeds or more, got {right.shape}")
    if not len(index):
        raise ClasswiseError("correct: no images, so there is nothing to measure")
    return right, index


def _sums_by_class(right: BoolArray, index: IntArray, num_classes: int) -> IntArray:
    """(S, C): the right answers of each seed in each class."""
    seed, image = np.nonzero(right)
    flat = np.bincount(seed * num_classes + index[image], minlength=len(right) * num_classes)
    return flat.reshape(len(right), num_classes)
