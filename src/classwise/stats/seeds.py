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
from scipy import special

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.config import Count, Seed
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray, class_labels, outcomes, ratio
from classwise.stats.crossed import Crossed, added_at_ends, added_by_runs, checked_runs
from classwise.stats.gaffke import root, score_below
from classwise.stats.intervals import lowest_interval, sidak
from classwise.stats.paired import ClassDifferences, sidak_adjusted
from classwise.stats.sample_splitting import HALVINGS, End, Halves, from_above, from_below
from classwise.stats.worst_difference import (
    ImageDifferences,
    Reach,
    lowest_difference,
    mean_of_lowest,
    of_present_classes,
)

_LARGEST_SCORE = 20.0
"""Normal quantile of half of the smallest p-value, 5e-89."""


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
def mean_over_seeds(
    correct: ArrayLike, labels: ArrayLike, num_classes: Count, alpha: Level = 0.05, *, simultaneous: bool = False
) -> SeedMeans:
    """Mean accuracy of each class over S seeds and its n images, with an interval for new seeds and images.

    Each end is mean +- sqrt(H^2 + E). H is the reach for new images and these runs (`classwise.stats.crossed`), E what
    new runs add (`classwise.stats.crossed.added_at_ends`). With one run, E is 0: the interval is Clopper and Pearson's,
    for new images only. With two runs it is valid and wide, since one degree of freedom gives little information about
    the spread of runs. Simulated coverages are in docs/results/interval-coverage.md. Where accuracies of runs are
    strongly skewed (expected 3 %, and two thirds of the runs between 0.8 and 5 %), coverage with three runs is about
    95 %. Runs that fail rarely are not covered.

    For the overall accuracy, pass zeros as labels and ``num_classes=1``.

    Args:
        correct: (S, N) true where the run of a seed is correct on an image.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C.
        alpha: 1 minus the coverage.
        simultaneous: whether the interval is one of several simultaneous ones, at a small ``alpha``.

    Raises:
        ClasswiseError: if there is no run, a label is out of range, or the lengths differ.
    """
    table = Crossed.of(*checked_runs(correct, labels, num_classes), num_classes)
    down, up = added_at_ends(
        table.mean, table.by_run, table.count, table.images, table.noise, alpha, simultaneous=simultaneous
    )
    low = table.mean - np.sqrt((table.mean - table.lower(alpha / 2).bound) ** 2 + down)
    high = table.mean + np.sqrt((table.upper(alpha / 2).bound - table.mean) ** 2 + up)
    return SeedMeans(table.mean, np.maximum(low, 0.0), np.minimum(high, 1.0))


@checked
def difference_over_seeds(
    first: ArrayLike, second: ArrayLike, labels: ArrayLike, num_classes: Count, alpha: Level = 0.05, *, paired: bool
) -> ClassDifferences:
    """Compare two methods over all their training seeds on the same images, per class.

    Each end is the difference +- sqrt(H^2 + E). H is the reach of Gaffke's bound (`classwise.stats.gaffke`) of the mean
    over images of an image's difference between the methods, each averaged over its runs: differences are bounded and
    often skewed, which a t test does not allow for. E is what new runs add (`classwise.stats.crossed.added_by_runs`),
    from the table of the differences per seed (paired), or from the table of each method (unpaired; nothing for a
    method with one run, which is treated as fixed). The p-value is the smallest level whose interval excludes 0.

    Args:
        first: (S, N) true where the run of a seed of the first method is correct on an image.
        second: (T, N) the same for the second method; S or T is at least 2.
        labels: (N,) integers in 0 .. C-1; zeros for the overall accuracy.
        num_classes: C.
        alpha: 1 minus the coverage of the intervals, of all classes together.
        paired: whether run s of both methods has the same seed; then S = T, and differences are taken per seed. They
            have half the degrees of freedom, so the interval is wider unless equal seeds have similar results.

    Raises:
        ClasswiseError: if each method has one seed, paired methods differ in the number of seeds, a label is out of
            range, or the lengths differ.
    """
    runs_a, runs_b, index = _both(first, second, labels, num_classes, paired=paired)
    if max(len(runs_a), len(runs_b)) < 2:
        raise ClasswiseError(
            "one seed per method; the variance over seeds requires at least two seeds of one method "
            "(classwise.stats.paired compares two runs)"
        )
    found = _Differences.of(runs_a, runs_b, index, num_classes, paired=paired)
    p_value = found.p_value()
    level = sidak(alpha, int(np.count_nonzero(~np.isnan(p_value))))
    return ClassDifferences(found.mean, *found.ends(level), p_value, sidak_adjusted(p_value))


class _Differences(NamedTuple):
    """Differences of two methods per class, and the components of their variance; arrays are (C,)."""

    mean: FloatArray
    images: ImageDifferences
    variance: FloatArray
    tables: Sequence[Crossed]

    @classmethod
    def of(
        cls, runs_a: BoolArray, runs_b: BoolArray, index: IntArray, num_classes: int, *, paired: bool
    ) -> _Differences:
        per_seed = [runs_a.astype(np.float64) - runs_b] if paired else [runs_a, runs_b]
        tables = [Crossed.of(runs, index, num_classes) for runs in per_seed if len(runs) > 1]
        images = ImageDifferences.of(runs_a, runs_b, index, num_classes)
        count = images.counts.sum(axis=1)
        mean, square = (ratio(images.counts @ images.values**power, count) for power in (1, 2))
        return cls(mean, images, ratio(np.maximum(square - mean**2, 0), count), tables)

    def added(self, level: ArrayLike) -> FloatArray:
        """Square of what new runs add to the half-width at a level, a number or (C,)."""
        over_runs, noise, runs = zip(*((one.over_runs, one.noise, one.runs) for one in self.tables), strict=True)
        return added_by_runs(self.variance, over_runs, noise, runs, level, simultaneous=True)

    def ends(self, level: float) -> tuple[FloatArray, FloatArray]:
        added = self.added(level)
        down = self.mean - self.images.lower(level / 2)
        up = -self.mean - self.images.negated.lower(level / 2)
        low, high = self.mean - np.sqrt(down**2 + added), self.mean + np.sqrt(up**2 + added)
        return np.maximum(low, -1.0), np.minimum(high, 1.0)

    def p_value(self) -> FloatArray:
        """The smallest level at which an interval excludes 0: a root over the normal quantile of half the level."""
        size = np.abs(self.mean)
        sides = [
            ImageDifferences(side.values, np.where((sign * self.mean > 0)[:, None], side.counts, 0))
            for sign, side in ((1, self.images), (-1, self.images.negated))
        ]

        def beyond(quantile: FloatArray) -> FloatArray:
            # The bound at which reach and runs together are the difference; above it, 0 is excluded
            added = self.added(2 * special.ndtr(quantile))
            at = size - np.sqrt(np.maximum(size**2 - np.nan_to_num(added), 0))
            score = np.where(self.mean > 0, *(score_below(side.values, side.counts, at) for side in sides))
            return np.clip(quantile - score, -_LARGEST_SCORE, _LARGEST_SCORE)

        low, high = np.full(size.shape, -_LARGEST_SCORE), np.zeros(size.shape)
        p_value = np.minimum(2 * special.ndtr(root(beyond, low, high)), 1.0)
        return np.where(self.mean == 0, 1.0, np.where(np.isnan(size), np.nan, p_value))


class OverSeeds(NamedTuple):
    """A worst-class accuracy over runs, or a difference of two, with its interval.

    Attributes:
        value: mean over the runs of the lowest class accuracy of a run.
        low: lower end of the interval.
        high: upper end.
        of_images: the share of the squared distances to the ends that is caused by new images; the rest, by new runs.
    """

    value: float
    low: float
    high: float
    of_images: float

    @property
    def narrower(self) -> Literal["images", "runs"]:
        """What would narrow the interval most."""
        return "images" if self.of_images >= 0.5 else "runs"


@checked
def worst_over_seeds(
    correct: ArrayLike,
    labels: ArrayLike,
    num_classes: Count,
    alpha: Level = 0.05,
    *,
    simultaneous: bool = False,
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
        simultaneous: whether the interval is one of several simultaneous ones, at a small ``alpha``.
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
    index = of_present_classes(index)
    table = Crossed.of(right, index, int(index.max()) + 1)
    value = mean_of_lowest(table)
    if table.runs == 1:
        counts = ClassCounts.from_labels(index, right[0], int(index.max()) + 1)
        return OverSeeds(value, *lowest_interval(counts, alpha), 1.0)
    above = from_above(table, Halves.draw(right, index, halvings, seed), alpha / 2)
    below = from_below(table, alpha / 2)
    ends = [below] if above is None else [below, above[0]]
    reaches = [_reach(end, alpha, side, simultaneous=simultaneous) for side, end in enumerate(ends)]
    low = below.value - reaches[0].total
    high = 1.0 if above is None else above[0].value + reaches[1].total
    return OverSeeds(value, max(min(low, value), 0.0), min(max(high, value), 1.0), _of_images(reaches))


def _reach(end: End, alpha: float, side: int, *, simultaneous: bool) -> Reach:
    """Distances to the lower end (side 0) or to the upper one (1)."""
    added = added_at_ends(end.value, end.by_run, end.count, end.images, end.noise, alpha, simultaneous=simultaneous)
    return Reach((end.bound - end.value) ** 2, float(added[side]))


def _of_images(reaches: Sequence[Reach]) -> float:
    images, runs = sum(reach.images for reach in reaches), sum(reach.runs for reach in reaches)
    return images / (images + runs) if images + runs else 1.0


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
        second: (T, N) the same for the second method. A method with one run is treated as fixed.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C; absent classes are excluded.
        alpha: 1 minus the coverage.
        paired: take differences of runs s of both methods, which have the same seed; then S = T. Without it, positively
            correlated runs make the interval wider than necessary, but with three seeds it is narrower, because it has
            up to four degrees of freedom in place of two.
        halvings: number of random halvings of the images.
        seed: seed of the halvings.

    Raises:
        ClasswiseError: if paired methods differ in the number of seeds, a label is out of range, the lengths differ, or
            ``halvings`` is below 1.
    """
    runs_a, runs_b, index = _both(first, second, labels, num_classes, paired=paired)
    found, reaches = lowest_difference(runs_a, runs_b, index, alpha, paired=paired, halvings=halvings, seed=seed)
    return OverSeeds(*found, _of_images(reaches))


def _both(
    first: ArrayLike, second: ArrayLike, labels: ArrayLike, num_classes: int, *, paired: bool
) -> tuple[BoolArray, BoolArray, IntArray]:
    index = class_labels(labels, num_classes)
    runs_a, runs_b = (np.atleast_2d(outcomes(runs, len(index))) for runs in (first, second))
    if not len(index):
        raise ClasswiseError("labels: no images; a comparison requires at least one")
    if paired and len(runs_a) != len(runs_b):
        raise ClasswiseError(f"{len(runs_a)} and {len(runs_b)} seeds cannot be paired; pass paired=False")
    return runs_a, runs_b, index
