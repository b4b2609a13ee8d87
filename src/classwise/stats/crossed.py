"""Runs and images as crossed random effects: components of variance, and bounds for new images and new runs.

S training runs are evaluated on the same n images of each class, so that an image counts once however many runs see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import BoolArray, FloatArray, IntArray, class_labels, class_means, outcomes, ratio

_CONSTANT = 1e-15
"""Below this variance, all values are equal to the value that a bound adds to them."""

_LONGEST = 2.0
"""The largest ratio of the distance on the logit scale to that on the scale of accuracies."""


class MeanBound(NamedTuple):
    """An upper or lower bound of an expectation, and the variance of the random mean behind it."""

    bound: FloatArray
    variance: FloatArray


def upper_bound(count: ArrayLike, mean: ArrayLike, square: ArrayLike, error: float) -> MeanBound:
    """Upper bound of the expectation of values in [0, 1], from n values with this mean and mean square.

    The value 1 is added to the n values, and the n + 1 values get Dirichlet(1, ..., 1) weights (Gaffke's bound, 2004).
    The weighted mean is approximated by a beta distribution with its first two moments. For the values 0 and 1 the
    bound is exactly that of Clopper and Pearson. For other values its validity is conjectured and was simulated.

    Args:
        count: n, any shape, at least 1; effective sample sizes are allowed.
        mean: mean of the values, same shape.
        square: mean of their squares, same shape.
        error: probability that the bound is below the expectation.
    """
    n, m, q = (np.asarray(values, dtype=np.float64) for values in (count, mean, square))
    first = (n * m + 1) / (n + 1)
    second = (n * np.maximum(q, m**2) + 1) / (n + 1)
    variance = (second - first**2) / (n + 2)
    constant = variance < _CONSTANT
    size = first * (1 - first) / np.where(constant, 1.0, variance) - 1
    a, b = np.maximum(first * size, 1e-12), np.maximum((1 - first) * size, 1e-12)
    bound = np.where(constant, 1.0, special.betaincinv(a, b, 1 - error))
    return MeanBound(bound, np.where(constant, 0.0, variance))


def lower_bound(count: ArrayLike, mean: ArrayLike, square: ArrayLike, error: float) -> MeanBound:
    """Lower bound of the expectation of values in [0, 1]: 1 minus the `upper_bound` of 1 minus the values."""
    m, q = np.asarray(mean, dtype=np.float64), np.asarray(square, dtype=np.float64)
    bound, variance = upper_bound(count, 1 - m, 1 - 2 * m + q, error)
    return MeanBound(1 - bound, variance)


@dataclass(frozen=True)
class Crossed:
    """Values of S runs on the n images of each class. Arrays of classes are (C,), NaN for classes without an image.

    Attributes:
        count: number of images n.
        by_run: (S, C) mean of each run.
        square: mean over the images of the square of an image's mean over the runs.
        least: lowest of the images' means over the runs.
        largest: highest of them.
        noise: the part of `over_runs` that is caused by the images: the residual mean square over S n.
    """

    count: FloatArray
    by_run: FloatArray
    square: FloatArray
    least: FloatArray
    largest: FloatArray
    noise: FloatArray

    @classmethod
    def of(cls, values: ArrayLike, index: IntArray, num_classes: int) -> Crossed:
        """The table of (S, N) values with (N,) labels."""
        table = np.asarray(values, dtype=np.float64)
        runs = len(table)
        count = np.bincount(index, minlength=num_classes).astype(np.float64)
        by_run = np.stack([class_means(run, index, num_classes) for run in table])
        of_images = table.mean(axis=0)
        square = class_means(of_images**2, index, num_classes)
        least, largest = np.full(num_classes, np.inf), np.full(num_classes, -np.inf)
        np.minimum.at(least, index, of_images)
        np.maximum.at(largest, index, of_images)
        noise = np.where(count > 0, 0.0, np.nan)
        if runs > 1:
            of_an_image = class_means(table.var(axis=0, ddof=1), index, num_classes) / runs
            noise = np.maximum(of_an_image - by_run.var(axis=0, ddof=1) / runs, 0) / np.maximum(count - 1, 1)
        return cls(count, by_run, square, least, largest, noise)

    @property
    def runs(self) -> int:
        """Number of runs S."""
        return len(self.by_run)

    @cached_property
    def mean(self) -> FloatArray:
        """Mean over runs and images."""
        return np.asarray(self.by_run.mean(axis=0))

    @cached_property
    def images(self) -> FloatArray:
        """Variance of `mean` over new images, for these runs, with n in place of n - 1."""
        return ratio(np.maximum(self.square - self.mean**2, 0), self.count)

    @cached_property
    def over_runs(self) -> FloatArray:
        """Variance of the means of the runs, over S; 0 for a single run."""
        if self.runs == 1:
            return np.zeros_like(self.mean)
        return np.asarray(self.by_run.var(axis=0, ddof=1) / self.runs)

    def upper(self, error: float) -> MeanBound:
        """Upper bound of each class for new images and these runs, of values in [0, 1]."""
        found = _scaled_lower(self.count, 1 - self.mean, 1 - 2 * self.mean + self.square, 1 - self.least, error)
        return MeanBound(1 - found.bound, found.variance)

    def lower(self, error: float) -> MeanBound:
        """Lower bound of each class for new images and these runs, of values in [0, 1]."""
        return _scaled_lower(self.count, self.mean, self.square, self.largest, error)


def _scaled_lower(
    count: FloatArray, mean: FloatArray, square: FloatArray, largest: FloatArray, error: float
) -> MeanBound:
    """`lower_bound` of the values over their maximum, which is the range of the weighted mean, too."""
    scale, n = np.where(largest > 0, largest, 1.0), np.where(count > 0, count, np.nan)
    bound, variance = lower_bound(n, mean / scale, square / scale**2, error)
    return MeanBound(scale * bound, scale**2 * variance)


def added_by_runs(
    images: ArrayLike,
    over_runs: Sequence[ArrayLike],
    noise: Sequence[ArrayLike],
    runs: Sequence[int],
    alpha: ArrayLike,
    *,
    simultaneous: bool = False,
) -> FloatArray:
    """What new runs add to the square of the half-width of an interval for new images.

    With I the variance over new images, A the variance of the per-run estimates over S, R the part of A that is caused
    by images (it is in I, too) and d = S - 1:

    - three or more runs: t^2 V - z^2 I with V = I + max(A - R, 0) and t of d / min(A / V, 1) degrees of freedom. The
      coverage is at least 0.942 for three runs and 0.950 for five in a numerical scan of all variance ratios;
    - two runs: max(t^2 A - z^2 R, 0) with one degree of freedom. Half-widths in quadrature are conservative
      (Banerjee 1961). So is the interval of a single table at the small levels of simultaneous intervals, where the
      first rule fails up to three times as often as the level (three runs, ten classes); with three runs of each of
      two methods it keeps its level there.

    The effects of runs are assumed to be about normal: runs that fail rarely are not covered.

    Args:
        images: I, any shape.
        over_runs: A of each method with two or more runs.
        noise: R of each of these methods.
        runs: S of each of these methods.
        alpha: 1 minus the coverage of the interval, a number or of the shape of ``images``.
        simultaneous: whether the interval is one of several simultaneous ones.
    """
    variance_images = np.asarray(images, dtype=np.float64)
    if not runs:
        return np.zeros_like(variance_images)
    a = np.array([np.broadcast_to(part, variance_images.shape) for part in over_runs], dtype=np.float64)
    r = np.array([np.broadcast_to(part, variance_images.shape) for part in noise], dtype=np.float64)
    d = np.asarray(runs, dtype=np.float64).reshape(-1, *[1] * variance_images.ndim) - 1
    tail = np.asarray(alpha, dtype=np.float64) / 2
    z = special.ndtri(tail)
    if min(runs) == 2 or (simultaneous and len(runs) == 1):
        return np.asarray(np.maximum((special.stdtrit(d, tail) ** 2 * a).sum(axis=0) - z**2 * r.sum(axis=0), 0.0))
    variance_images = np.maximum(variance_images, r.sum(axis=0))
    total = a.sum(axis=0)
    variance = variance_images + np.maximum(a - r, 0).sum(axis=0)
    share = np.clip(np.nan_to_num(ratio(total, variance)), 0, 1)
    inverse = np.nan_to_num(ratio((a**2 / d).sum(axis=0), total**2))
    t = special.stdtrit(1 / np.maximum(share * inverse, 1e-9), tail)
    return np.asarray(np.maximum(t**2 * variance - z**2 * variance_images, 0.0))


def added_at_ends(
    mean: ArrayLike,
    by_run: FloatArray,
    count: ArrayLike,
    images: ArrayLike,
    noise: ArrayLike,
    alpha: float,
    *,
    simultaneous: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """What new runs add to the squares of the distances from a mean accuracy to its lower and to its upper end.

    From three runs on, it is the larger one of `added_by_runs` of the accuracies and of their logits (Warton and Hui
    2011), whose spread does not depend on the mean: near 0 and 1, accuracies of runs are skewed, and an interval of the
    accuracies alone is too short on the side of 50 %. It is at most `_LONGEST` times as long: of three runs at 0,
    1 and 10 %, the logits alone would allow almost any mean.

    Args:
        mean: mean accuracy, any shape.
        by_run: (S, ...) accuracy of each run.
        count: number of images.
        images: variance of the mean over new images.
        noise: the part of the variance of ``by_run`` over S that is caused by images.
        alpha: 1 minus the coverage of the interval.
        simultaneous: whether the interval is one of several simultaneous ones.
    """
    runs = len(by_run)
    if runs == 1:
        return np.zeros_like(by_run[0]), np.zeros_like(by_run[0])

    def added(values: FloatArray, scale: ArrayLike) -> FloatArray:
        over_runs = values.var(axis=0, ddof=1) / runs
        of_images, of_noise = np.divide(images, scale), np.divide(noise, scale)
        return added_by_runs(of_images, [over_runs], [of_noise], [runs], alpha, simultaneous=simultaneous)

    of_accuracies = added(by_run, 1.0)
    if runs == 2:
        return of_accuracies, of_accuracies
    least = 0.5 / np.maximum(np.asarray(count, dtype=np.float64), 1)
    p, logits = np.clip(mean, least, 1 - least), special.logit(np.clip(by_run, least, 1 - least))
    reach = np.sqrt(added(logits, (p * (1 - p)) ** 2))
    down, up = (p - special.expit(special.logit(p) + sign * reach) for sign in (-1, 1))
    most = _LONGEST**2 * of_accuracies
    return np.clip(down**2, of_accuracies, most), np.clip(up**2, of_accuracies, most)


def checked_runs(correct: ArrayLike, labels: ArrayLike, num_classes: int) -> tuple[BoolArray, IntArray]:
    """The (S, N) outcomes of at least one run and the (N,) labels.

    Raises:
        ClasswiseError: for another shape, no run, no images, or a label that is out of range.
    """
    index = class_labels(labels, num_classes)
    right = outcomes(correct, len(index))
    if right.ndim != 2 or not len(right):
        raise ClasswiseError(f"correct: expected shape (seeds, images) with at least one seed, got {right.shape}")
    if not len(index):
        raise ClasswiseError("correct: no images; at least one is required")
    return right, index
