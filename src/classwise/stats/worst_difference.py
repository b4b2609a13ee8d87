"""The ends of an interval for the difference of the lowest class accuracies of two methods on the same images."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from classwise.stats.counts import BoolArray, FloatArray, IntArray, ratio
from classwise.stats.crossed import Crossed, added_by_runs
from classwise.stats.gaffke import lower_bounds
from classwise.stats.intervals import Estimate
from classwise.stats.sample_splitting import Halves, from_above

_ALIKE = 0.05
"""Share of alpha that is spent, for one run each, on bounds that are narrow if the predictions are nearly the same."""


class ImageDifferences(NamedTuple):
    """How often each difference of an image between two methods, averaged over the runs of each, occurs in each class.

    Attributes:
        values: (K,) ascending differences, the first -1 and the last 1.
        counts: (C, K) images.
    """

    values: FloatArray
    counts: FloatArray

    @classmethod
    def of(cls, runs_a: BoolArray, runs_b: BoolArray, index: IntArray, num_classes: int) -> ImageDifferences:
        """Tables of (S, N) and (T, N) outcomes."""
        common = math.lcm(len(runs_a), len(runs_b))
        parts = (runs.sum(axis=0) * (common // len(runs)) for runs in (runs_a, runs_b))
        whole = np.subtract(*parts)
        steps = np.union1d(whole, [-common, common])
        cells = np.bincount(index * len(steps) + np.searchsorted(steps, whole), minlength=num_classes * len(steps))
        return cls(steps / common, cells.reshape(num_classes, -1).astype(np.float64))

    @property
    def negated(self) -> ImageDifferences:
        """The same of the second method minus the first."""
        return ImageDifferences(-self.values[::-1], self.counts[:, ::-1])

    def lower(self, error: ArrayLike) -> FloatArray:
        """(C,) lower bounds for new images; NaN for absent classes."""
        return lower_bounds(self.values, self.counts, error)


class Reach(NamedTuple):
    """Squared distances from a statistic to its end: caused by new images, and added by new runs."""

    images: float
    runs: float

    @property
    def total(self) -> float:
        """The distance."""
        return float(np.sqrt(self.images + self.runs))


def mean_of_lowest(table: Crossed) -> float:
    """Mean over the runs of the lowest class accuracy of a run."""
    return float(table.by_run.min(axis=1).mean())


def of_present_classes(index: IntArray) -> IntArray:
    """Labels that count classes with images only."""
    return np.unique(index, return_inverse=True)[1]


def lowest_difference(
    runs_a: BoolArray, runs_b: BoolArray, labels: IntArray, alpha: float, *, paired: bool, halvings: int, seed: int
) -> tuple[Estimate, tuple[Reach, Reach]]:
    """Lowest class accuracy of A minus that of B, means over the runs; `classwise.stats.seeds` states the method.

    Args:
        runs_a: (S, N) outcomes.
        runs_b: (T, N) outcomes.
        labels: (N,) integers; at least one.
        alpha: 1 minus the coverage.
        paired: whether differences are taken per run.
        halvings: number of random halvings of the images.
        seed: seed of the halvings.

    Returns:
        The difference, and the reaches of its upper and its lower end.
    """
    index = of_present_classes(labels)
    classes = int(index.max()) + 1
    a, b = (
        _Method(runs, Crossed.of(runs, index, classes), Halves.draw(runs, index, halvings, seed))
        for runs in (runs_a, runs_b)
    )
    value, alike = mean_of_lowest(a.table) - mean_of_lowest(b.table), 0.0
    least, most = -1.0, 1.0
    if len(runs_a) == len(runs_b) == 1:
        # The difference of the lowest is at most that of B's lowest class, and at least that of A's
        alike = _ALIKE * alpha
        differences = ImageDifferences.of(runs_a, runs_b, index, classes)
        least, most = (float(one.lower(alike / 2).min()) for one in (differences, differences.negated))
        most = -most
    high, up = _difference_above(a, b, index, alpha - alike, paired=paired)
    low, down = _difference_above(b, a, index, alpha - alike, paired=paired)
    low, high = max(-low, least), min(high, most)
    return Estimate(value, max(min(low, value), -1.0), min(max(high, value), 1.0)), (up, down)


class _Method(NamedTuple):
    right: BoolArray
    table: Crossed
    halves: Halves


def _difference_above(a: _Method, b: _Method, index: IntArray, alpha: float, *, paired: bool) -> tuple[float, Reach]:
    """Upper end of A - B, and its distances from the estimate."""
    table_a, table_b = a.table, b.table
    above = from_above(table_a, a.halves, alpha / 2)
    if above is None:
        return 1.0, Reach(1.0, 0.0)
    end, split = above
    lower_b = table_b.lower(alpha / 2)
    down = np.maximum(table_b.mean - lower_b.bound, 0)
    product = np.bincount(index, weights=a.right.mean(axis=0) * b.right.mean(axis=0)) / table_a.count
    covariance = (product - table_a.mean * table_b.mean) / table_a.count
    # Squared half-widths for new images: of (chosen classes - class c), and of (class c - class c)
    chosen = _squared_difference(
        end.bound - end.value, down, split.weights * covariance, split.variance * lower_b.variance
    )
    differences = ImageDifferences.of(a.right, b.right, index, len(down)).negated
    same = (table_b.mean - table_a.mean - differences.lower(alpha / 2)) ** 2
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
        per_seed = Crossed.of(a.right.astype(np.float64) - b.right, index, len(down))
        shared = (table_a.noise + table_b.noise - per_seed.noise) / 2
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
    reach = Reach((bound - value) ** 2, float(added))
    return value + reach.total, reach


def _squared_difference(up: ArrayLike, down: FloatArray, covariance: FloatArray, product: ArrayLike) -> FloatArray:
    """Square of the half-width of a difference of correlated estimates with these half-widths (Zou and Donner 2008)."""
    correlation = np.clip(np.nan_to_num(ratio(covariance, np.sqrt(product))), -1, 1)
    reach = np.asarray(up, dtype=np.float64)
    return np.maximum(reach**2 + down**2 - 2 * correlation * reach * down, 0.0)
