"""Accuracy over several training runs that differ only in the seed, evaluated on the same images.

Population T: new images and new training seeds; with one run, new images only. Runs and images are crossed random
effects (`classwise.stats.crossed`). The effects of runs are assumed to be about normal: no three runs can show what one
run in twenty does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.arguments import Level, checked
from classwise.core.config import Count, Seed
from classwise.core.errors import ClasswiseError
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray, class_labels, outcomes, ratio
from classwise.stats.crossed import Crossed, DifferenceComponents, added_by_runs, checked_runs
from classwise.stats.intervals import lowest_interval, sidak
from classwise.stats.paired import ClassDifferences, paired_interval, paired_p_value, sidak_adjusted
from classwise.stats.sample_splitting import HALVINGS, End, Halves, from_above, from_below

ROUNDING = 1e-13
"""Differences of proportions, and variances over images, below this are 0 up to rounding."""


class SeedMeans(NamedTuple):
    """Mean accuracy over seeds and images of each class; every field is a (C,) array, NaN for absent classes.

    Attributes:
        mean: mean accuracy, a fraction.
        low: lower end of the interval.
        high: upper end.
    """

    mean: FloatArray
    low: FloatArray
    high: FloatArray


@checked
def mean_over_seeds(correct: ArrayLike, labels: ArrayLike, num_classes: Count, alpha: Level = 0.05) -> SeedMeans:
    """Mean accuracy of each class over S seeds and its n images, with an interval for new seeds and images.

    Each end is mean +- sqrt(H^2 + E). H is the reach for new images and these runs (`classwise.stats.crossed`), E what
    new runs add. With one run, E is 0: the interval is Clopper and Pearson's, for new images only. With two runs it is
    valid and wide, since one degree of freedom gives little information about the spread of runs. Simulated coverages
    are in docs/results/interval-coverage.md. Runs that fail rarely are not covered.

    For the overall accuracy, pass zeros as labels and ``num_classes=1``.

    Args:
        correct: (S, N) true where the run of a seed is correct on an image.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C.
        alpha: 1 minus the coverage.

    Raises:
        ClasswiseError: if there is no run, a label is out of range, or the lengths differ.
    """
    table = Crossed.of(*checked_runs(correct, labels, num_classes), num_classes)
    runs = [table.runs] if table.runs > 1 else []
    added = added_by_runs(table.images, [table.over_runs] * len(runs), [table.noise] * len(runs), runs, alpha)
    low = table.mean - np.sqrt((table.mean - table.lower(alpha / 2).bound) ** 2 + added)
    high = table.mean + np.sqrt((table.upper(alpha / 2).bound - table.mean) ** 2 + added)
    return SeedMeans(table.mean, np.maximum(low, 0.0), np.minimum(high, 1.0))


@checked
def difference_over_seeds(
    first: ArrayLike, second: ArrayLike, labels: ArrayLike, num_classes: Count, alpha: Level = 0.05, *, paired: bool
) -> ClassDifferences:
    """Compare two methods over all their training seeds on the same images, per class.

    The variance of the difference of the means is the sum of

    - images: the variance over images of an image's mean difference, over n;
    - seeds: what varies over seeds beyond the images, from the table of the differences per seed (paired), or from the
      table of each method (unpaired; 0 for a method with one seed, which is treated as fixed).

    With three or more seeds, the test is Student's with 1/(x/d + (1 - x)/(n - 1)) degrees of freedom, where x is the
    share of the variance that is estimated over seeds and d the seeds' degrees of freedom (after Welch and
    Satterthwaite, for two tables). Satterthwaite's own formula rejects too often because x is uncertain. If a method
    has two seeds, half-widths are added in quadrature (`classwise.stats.crossed.added_by_runs`), since that test would
    reject up to 9 % of equal methods at level 5 %. If all differences are equal, the variance estimate is 0: interval
    and test are those of `classwise.stats.paired`.

    Args:
        first: (S, N) true where the run of a seed of the first method is correct on an image.
        second: (T, N) the same for the second method; S or T is at least 2.
        labels: (N,) integers in 0 .. C-1; zeros for the overall accuracy.
        num_classes: C.
        alpha: 1 minus the coverage of the intervals, of all classes together.
        paired: whether run s of both methods has the same seed; then S = T, and differences are taken per seed.

    Raises:
        ClasswiseError: if each method has one seed, paired methods differ in the number of seeds, a label is out of
            range, or the lengths differ.
    """
    runs_a, runs_b, index = _both(first, second, labels, num_classes, paired=paired)
    if paired:
        tables = [Crossed.of(runs_a.astype(np.float64) - runs_b, index, num_classes)]
    else:
        tables = [Crossed.of(runs, index, num_classes) for runs in (runs_a, runs_b) if len(runs) > 1]
    per_image = runs_a.mean(axis=0) - runs_b.mean(axis=0)
    count = np.bincount(index, minlength=num_classes).astype(np.float64)
    difference = ratio(np.bincount(index, weights=per_image, minlength=num_classes), count)
    scatter = np.bincount(index, weights=(per_image - difference[index]) ** 2, minlength=num_classes)
    images = ratio(ratio(scatter, count - 1), count)
    images = np.maximum(images, np.sum([table.noise for table in tables], axis=0))
    over_runs, noise, runs = zip(*((table.over_runs, table.noise, table.runs) for table in tables), strict=True)
    components = DifferenceComponents(images, count - 1, over_runs, noise, runs)
    positive = components.variance * count > ROUNDING
    # If the variance is 0, the difference is -1, 0 or 1 on every image.
    constant = ~positive & ~np.isnan(images) & (count > 0)
    up, down = (np.where(constant & (difference * sign > 0.5), count, 0).astype(np.int64) for sign in (1, -1))
    p_value = np.where(positive, components.p_value(np.abs(difference)), np.nan)
    p_value = np.where(constant, paired_p_value(up, down), p_value)
    level = sidak(alpha, int(np.count_nonzero(~np.isnan(p_value))))
    exact, half_width = paired_interval(up, down, count, level), components.half_width(level)
    low = np.where(constant, exact.low, np.maximum(difference - half_width, -1.0))
    high = np.where(constant, exact.high, np.minimum(difference + half_width, 1.0))
    return ClassDifferences(difference, low, high, p_value, sidak_adjusted(p_value))


class OverSeeds(NamedTuple):
    """A worst-class accuracy over runs, or a difference of two, with its interval.

    Attributes:
        value: mean over the runs of the lowest class accuracy of a run.
        low: lower end of the interval.
        high: upper end.
        narrower: what would narrow the interval most: more ``images``, or more ``runs``.
    """

    value: float
    low: float
    high: float
    narrower: Literal["images", "runs"]


@checked
def worst_over_seeds(
    correct: ArrayLike,
    labels: ArrayLike,
    num_classes: Count,
    alpha: Level = 0.05,
    *,
    halvings: Count = HALVINGS,
    seed: Seed = 0,
) -> OverSeeds:
    """Mean over runs of the lowest class accuracy of a run, with an interval for new images and new runs.

    The lowest class may differ between runs. The plug-in value is biased low, so the two ends are other statistics,
    each of which errs to its own side only (`classwise.stats.sample_splitting`), with the reach H for new images. What
    new runs add is E of `classwise.stats.crossed.added_by_runs`; each end is its statistic +- sqrt(H^2 + E). There is
    no correction for the number of classes.

    With one run, E is unknown: the interval is `classwise.stats.intervals.lowest_interval`, for new images only. With
    two runs it is valid and wide; three or more are needed. Simulated coverages and widths are in
    docs/results/interval-coverage.md. The effects of runs are assumed to be about normal: runs that fail rarely are not
    covered, nor are classes that were selected from more classes.

    Args:
        correct: (S, N) true where the run of a seed is correct on an image.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C; absent classes are excluded.
        alpha: 1 minus the coverage; each end fails with probability of about alpha/2 or less.
        halvings: number of random halvings of the images behind the upper end.
        seed: seed of the halvings.

    Returns:
        Fractions.

    Raises:
        ClasswiseError: if there is no run, a label is out of range, the lengths differ, or ``halvings`` is below 1.

    Example:
        >>> import numpy as np
        >>> labels = np.repeat([0, 1], 100)
        >>> right = np.tile(np.arange(100), 2) < np.where(labels, 40, 80)  # 80 and 40 of 100 images
        >>> found = worst_over_seeds([right, right, right], labels, 2)
        >>> round(found.value, 2), round(found.low, 2), round(found.high, 2), found.narrower
        (0.4, 0.3, 0.5, 'images')
    """
    right, index = checked_runs(correct, labels, num_classes)
    index = _of_present_classes(index)
    table = Crossed.of(right, index, int(index.max()) + 1)
    value = _mean_of_lowest(table)
    if table.runs == 1:
        counts = ClassCounts.from_labels(index, right[0], int(index.max()) + 1)
        return OverSeeds(value, *lowest_interval(counts, alpha), "images")
    above = from_above(table, Halves.draw(right, index, halvings, seed), alpha / 2)
    below = from_below(table, alpha / 2)
    reaches = [_reach(end, table.runs, alpha) for end in ([below] if above is None else [below, above[0]])]
    low = below.value - reaches[0].total
    high = 1.0 if above is None else above[0].value + reaches[1].total
    return OverSeeds(value, max(min(low, value), 0.0), min(max(high, value), 1.0), _narrower(reaches))


class _Reach(NamedTuple):
    """Squared distances from a statistic to its end: caused by new images, and added by new runs."""

    images: float
    runs: float

    @property
    def total(self) -> float:
        return float(np.sqrt(self.images + self.runs))


def _reach(end: End, runs: int, alpha: float) -> _Reach:
    over_runs = end.by_run.var(ddof=1) / runs
    added = added_by_runs(end.images, [over_runs], [end.noise], [runs], alpha)
    return _Reach((end.bound - end.value) ** 2, float(added))


def _narrower(reaches: Sequence[_Reach]) -> Literal["images", "runs"]:
    return "images" if sum(reach.images for reach in reaches) >= sum(reach.runs for reach in reaches) else "runs"


def _mean_of_lowest(table: Crossed) -> float:
    return float(table.by_run.min(axis=1).mean())


def _of_present_classes(index: IntArray) -> IntArray:
    """Labels that count classes with images only."""
    return np.unique(index, return_inverse=True)[1]


@checked
def worst_difference_over_seeds(
    first: ArrayLike,
    second: ArrayLike,
    labels: ArrayLike,
    num_classes: Count,
    alpha: Level = 0.05,
    *,
    paired: bool = False,
    halvings: Count = HALVINGS,
    seed: Seed = 0,
) -> OverSeeds:
    """Mean over runs of the lowest class accuracy of a run, of one method minus that of another.

    The upper end for A minus B considers every class c that could be the lowest of a run of B. There A is bounded above
    by the classes that sample splitting chooses for it, or by class c itself, whichever has the smaller predicted end
    on the choosing half; B is bounded below by class c. The lower end is minus the upper end of B minus A. Bounds of
    the same images are combined with their covariance (Zou and Donner 2008), and new runs add E as in
    `worst_over_seeds`, from the runs of each method. If several classes of both methods are nearly tied, the interval
    is wide, because either method's lowest class may be any of them.

    Args:
        first: (S, N) true where the run of a seed of the first method is correct on an image.
        second: (T, N) the same for the second method; S or T is at least 2. A method with one run is treated as fixed.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C; absent classes are excluded.
        alpha: 1 minus the coverage.
        paired: take differences of runs s of both methods, which have the same seed; then S = T. Without it, positively
            correlated runs make the interval wider than necessary, but with three seeds it is narrower, because it has
            up to four degrees of freedom in place of two.
        halvings: number of random halvings of the images.
        seed: seed of the halvings.

    Raises:
        ClasswiseError: if each method has one seed, paired methods differ in the number of seeds, a label is out of
            range, the lengths differ, or ``halvings`` is below 1.
    """
    runs_a, runs_b, index = _both(first, second, labels, num_classes, paired=paired)
    index = _of_present_classes(index)
    classes = int(index.max()) + 1
    a, b = (
        _Method(runs, Crossed.of(runs, index, classes), Halves.draw(runs, index, halvings, seed))
        for runs in (runs_a, runs_b)
    )
    value = _mean_of_lowest(a.table) - _mean_of_lowest(b.table)
    high, reach_up = _difference_above(a, b, index, alpha, paired=paired)
    low, reach_down = _difference_above(b, a, index, alpha, paired=paired)
    low, high = max(min(-low, value), -1.0), min(max(high, value), 1.0)
    return OverSeeds(value, low, high, _narrower([reach_up, reach_down]))


class _Method(NamedTuple):
    right: BoolArray
    table: Crossed
    halves: Halves


def _difference_above(a: _Method, b: _Method, index: IntArray, alpha: float, *, paired: bool) -> tuple[float, _Reach]:
    """Upper end of A - B, and its distances from the estimate."""
    table_a, table_b = a.table, b.table
    above = from_above(table_a, a.halves, alpha / 2)
    if above is None:
        return 1.0, _Reach(1.0, 0.0)
    end, split = above
    lower_b, upper_a = table_b.lower(alpha / 2), table_a.upper(alpha / 2)
    down = np.maximum(table_b.mean - lower_b.bound, 0)
    product = np.bincount(index, weights=a.right.mean(axis=0) * b.right.mean(axis=0)) / table_a.count
    covariance = (product - table_a.mean * table_b.mean) / table_a.count
    # Squared half-widths for new images: of (chosen classes - class c), and of (class c - class c)
    chosen = _squared_difference(
        end.bound - end.value, down, split.weights * covariance, split.variance * lower_b.variance
    )
    same = _squared_difference(upper_a.bound - table_a.mean, down, covariance, upper_a.variance * lower_b.variance)
    take_same = split.seen_class + np.sqrt(same) < split.seen[..., None] + np.sqrt(chosen)
    of_a = np.where(take_same, split.held_out_class, split.held_out[..., None]).mean(axis=0)
    share = take_same.mean(axis=(0, 1))
    half_width = np.sqrt(share * same + (1 - share) * chosen)

    shifted = table_b.by_run - half_width
    ends = of_a.mean(axis=0) - shifted
    lowest, run = ends.argmax(axis=1), np.arange(table_b.runs)
    bound = float(ends[run, lowest].mean())
    value = bound - float(half_width[lowest].mean())
    both_same = table_a.images + table_b.images - 2 * covariance
    both_chosen = end.images + table_b.images - 2 * split.weights * covariance
    images = max(float((share * both_same + (1 - share) * both_chosen)[lowest].mean()), 0.0)
    noise_a = float((share * table_a.noise + (1 - share) * end.noise)[lowest].mean())
    noise_b = float(table_b.noise[lowest].mean())
    if paired:
        # The covariance over runs of the two methods that is caused by images
        differences = Crossed.of(a.right.astype(np.float64) - b.right, index, len(down))
        shared = (table_a.noise + table_b.noise - differences.noise) / 2
        weight = share + (1 - share) * split.weights
        noise = [max(noise_a + noise_b - 2 * float((weight * shared)[lowest].mean()), 0.0)]
        per_run = [(of_a - shifted)[run, lowest]]
    else:
        per_run = [of_a[:, lowest].mean(axis=1), (shifted - of_a.mean(axis=0))[run, lowest]]
        noise = [noise_a, noise_b]
    several = [(runs, caused) for runs, caused in zip(per_run, noise, strict=True) if len(runs) > 1]
    over_runs = [runs.var(ddof=1) / len(runs) for runs, _ in several]
    added = added_by_runs(
        images, over_runs, [caused for _, caused in several], [len(runs) for runs, _ in several], alpha
    )
    reach = _Reach((bound - value) ** 2, float(added))
    return value + reach.total, reach


def _squared_difference(up: ArrayLike, down: FloatArray, covariance: FloatArray, product: ArrayLike) -> FloatArray:
    """Square of the half-width of a difference of correlated estimates with these half-widths (Zou and Donner 2008)."""
    correlation = np.clip(np.nan_to_num(ratio(covariance, np.sqrt(product))), -1, 1)
    reach = np.asarray(up, dtype=np.float64)
    return np.maximum(reach**2 + down**2 - 2 * correlation * reach * down, 0.0)


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
