"""Correlations over the classes of estimated quantities, with intervals of the correlation of the true ones.

Sampling error attenuates a correlation (Spearman 1904). Resampling the images adds this error a second time, so that
percentiles of resamples are too near to 0. Here the sampling error is estimated and subtracted instead. All results are
for new images of the same classes and fixed models (population P).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.config import Seed
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray, place_in_class, ratio
from classwise.stats.intervals import Estimate, two_sided_z
from classwise.stats.ranks import ranks, row_correlations

SPLITS = 100
"""Number of random splits of the images into halves."""
LEAST_CLASSES = 3
"""Pearson's correlation has no interval for fewer classes."""
LEAST_RANKED = 6
"""Spearman's correlation has no interval for fewer classes: its few possible values are too far apart."""
_NORMAL = 1e3
"""Above this value, a noncentral chi-square variable is treated as normal."""
_ORDER_ERROR = 3
"""Multiple of the error variance of half-sample ranks; see `rank_correlation`."""


class _Scatter(NamedTuple):
    """A sum of squares about the mean, corrected for sampling error.

    Attributes:
        value: the corrected sum; negative if the classes vary less than by chance.
        noise: the part of the sum of squares that was subtracted.
        scale: scale of the chi-square distribution of the sum of squares.
        spread: trace of the square of the error covariance.
    """

    value: float
    noise: float
    scale: float
    spread: float

    def ends(self, alpha: float) -> tuple[float, float]:
        """Interval of the true sum of squares, as in `classwise.stats.metrics.variance`; below 0 where it may be 0."""
        if not self.spread:
            return self.value, self.value
        z, t = two_sided_z(alpha), self.scale
        total, middle = (self.value + self.noise) / t, self.value + 2 * t * z**2
        half_width = z * math.sqrt(max(4 * t * (self.value + t * z**2) + 2 * self.spread, 0.0))
        if total > _NORMAL:
            return min(middle - half_width, self.value), middle + half_width
        low = t * float(special.chndtrinc(max(total, 0.0), max(self.noise / t, 1e-3), 1 - alpha / 2))
        if low < t * 1e-9:
            low = min(self.value - z * math.sqrt(2 * self.spread), 0.0)
        return min(low, self.value), max(middle + half_width, self.value)


@dataclass(frozen=True)
class Correlation:
    """Correlation over C classes of two vectors, of which one or both are estimated, as the parts of its interval.

    Attributes:
        value: correlation of the estimates in -1 .. 1; NaN if one of them is constant.
        product: sum of the products of the deviations from the mean, corrected for correlated errors.
        error: its standard error; NaN if the interval does not exist.
        residual: scatter of the first vector that is not explained by the second one.
        second: scatter of the second vector, the more reliable one.
        step: distance of neighbouring values of a rank correlation, by which the interval is extended; else 0.
    """

    value: float
    product: float
    error: float
    residual: _Scatter
    second: _Scatter
    step: float = 0.0

    def estimate(self, alpha: Level = 0.05) -> Estimate:
        """The correlation of the estimates with an interval of the correlation of the true quantities.

        The true correlation is t / sqrt(1 + t^2), where t is the true product over sqrt(true residual times true second
        scatter). The interval of this ratio combines those of its parts as in MOVER (Donner and Zou 2012); the parts
        are uncorrelated to first order. It excludes 0 exactly if the product differs significantly from 0, and reaches
        -1 or 1 where the residual may be 0. It is extended to the value, which sampling error pulls towards 0.

        Args:
            alpha: 1 minus the coverage.

        Returns:
            Numbers in -1 .. 1; the ends are NaN for few classes or if a class has a single image.
        """
        if math.isnan(self.value) or math.isnan(self.error):
            return Estimate(self.value, math.nan, math.nan)
        if self.second.value <= 0:
            return Estimate(self.value, -1.0, 1.0)
        (low, high), (second_low, second_high) = self.residual.ends(alpha), self.second.ends(alpha)
        one, other = math.sqrt(max(self.residual.value, 0.0)), math.sqrt(self.second.value)
        norm = one * other
        least = norm - math.hypot(other * (one - _root(low)), one * (other - _root(second_low)))
        most = norm + math.hypot(other * (_root(max(high, 0.0)) - one), one * (_root(second_high) - other))
        least = min(least, 0.0) if second_low <= 0 else least
        margin = two_sided_z(alpha) * self.error
        low, high = (sign * _lower(sign * self.product, margin, norm, least, most) for sign in (1, -1))
        low, high = max(low - self.step, -1.0), min(high + self.step, 1.0)
        return Estimate(self.value, min(low, self.value), max(high, self.value))


def _root(value: float) -> float:
    return math.copysign(math.sqrt(abs(value)), value)


def _lower(product: float, margin: float, norm: float, least: float, most: float) -> float:
    """Lower end of the correlation: t solves (product - t norm)^2 = margin^2 + t^2 w^2, w the error of the norm."""
    if product <= margin and least <= 0:
        return -1.0
    width = most - norm if product > margin else norm - least
    top = product**2 - margin**2
    bottom = product * norm + math.sqrt(max((product * norm) ** 2 - (norm**2 - width**2) * top, 0.0))
    if not bottom:
        return 1.0 if product > margin else -1.0
    return top / bottom / math.hypot(1.0, top / bottom)


def _correlation(
    value: float, vectors: FloatArray, errors: FloatArray, scatter: FloatArray, step: float = 0.0
) -> Correlation:
    """Correlation of two (2, C) vectors with error covariances (2, 2, C) and the corrected scatter (2, 2)."""
    x = vectors - vectors.mean(axis=1, keepdims=True)
    explained = np.diag(ratio(scatter, x @ x.T))
    if explained[0] > explained[1]:
        x, errors, scatter = x[::-1], errors[::-1, ::-1], scatter[::-1, ::-1]
    (first, shared), (_, second) = errors
    noise = float((first * second + shared**2).sum())
    whole = float((x[0] ** 2 * second + x[1] ** 2 * first + 2 * x[0] * x[1] * shared).sum()) - noise
    variance, product = max(whole, noise), float(scatter[0, 1])
    slope = float(ratio(product, scatter[1, 1]))
    residual = float(scatter[0, 0] - ratio(product**2 - variance, scatter[1, 1]))
    return Correlation(
        value,
        product,
        math.sqrt(variance),
        _scatter(x[0] - slope * x[1], first - 2 * slope * shared + slope**2 * second, residual, 2),
        _scatter(x[1], second, float(scatter[1, 1]), 1),
        step,
    )


def _scatter(deviations: FloatArray, errors: FloatArray, value: float, lost: int) -> _Scatter:
    """Scatter of (C,) deviations with error variances (C,), of which ``lost`` degrees of freedom are estimated."""
    share = 1 - lost / len(errors)
    squares, mean, spread = deviations**2, share * float(errors.sum()), share * float((errors**2).sum())
    total = float(squares.sum())
    scale = max(float(ratio(spread, mean)), float(ratio(squares @ errors, total))) if mean > 0 and total > 0 else 0.0
    return _Scatter(value, max(total - value, 0.0), scale, spread if scale > 0 else 0.0)


@checked
def pearson_correlation(first: ClassCounts | ArrayLike, second: ClassCounts | ArrayLike) -> Correlation:
    """Pearson's correlation over classes of two vectors, each of proportions or of known numbers.

    The errors of the two vectors are independent. An unbiased estimate of the sampling variance is subtracted.

    Args:
        first: counts of C classes that have images, or (C,) known numbers.
        second: the same, of the same length.

    Example:
        >>> import numpy as np
        >>> counts = ClassCounts(np.full(6, 50), [20, 30, 25, 35, 40, 45])
        >>> found = pearson_correlation(counts, np.arange(6.0)).estimate()
        >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
        (0.94, 0.77, 1.0)
    """
    vectors, unbiased, smoothed = map(np.stack, zip(_proportions(first), _proportions(second), strict=True))
    classes = vectors.shape[1]
    if classes < 2 or (np.ptp(vectors, axis=1) == 0).any():
        return _without_interval(math.nan)
    x = vectors - vectors.mean(axis=1, keepdims=True)
    value = float(np.clip(row_correlations(x[0], x[1]), -1, 1))
    if classes < LEAST_CLASSES or np.isnan(unbiased).any():
        return _without_interval(value)
    scatter = x @ x.T - (1 - 1 / classes) * np.diag(unbiased.sum(axis=1))
    errors = np.zeros((2, 2, classes))
    errors[0, 0], errors[1, 1] = smoothed
    return _correlation(value, vectors, errors, scatter)


def _proportions(vector: ClassCounts | ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Numbers, unbiased variances of their errors (NaN for one image), and variances that are positive at 0 and 1.

    The latter are at least those of proportions halfway to the mean over the classes: few images of a rare outcome
    often show none.
    """
    if not isinstance(vector, ClassCounts):
        numbers = np.asarray(vector, dtype=np.float64)
        return numbers, np.zeros(len(numbers)), np.zeros(len(numbers))
    share, images = vector.accuracy, vector.count
    unbiased = ratio(share * (1 - share), images - 1)
    halfway = (share + share.sum() / max(len(share), 1)) / 2
    return share, unbiased, np.fmax(unbiased, ratio(halfway * (1 - halfway), images))


def _without_interval(value: float) -> Correlation:
    empty = _Scatter(math.nan, 0.0, 0.0, 0.0)
    return Correlation(value, math.nan, math.nan, empty, empty)


@checked
def rank_correlation(values: FloatArray, halves: FloatArray) -> Correlation:
    """Spearman's correlation over classes of two vectors, from values in random halves of the images.

    The ranks in one half are correlated with those in the other one, which is free of the error that both have in
    common; the classical split-half reliability (Spearman 1910, Brown 1910) is a case of it. Classes whose accuracies
    the images cannot separate count as tied. The unknown order of classes that are nearly tied adds an error of its
    own: the error variance is multiplied by `_ORDER_ERROR`, with which the simulated populations are covered.

    Args:
        values: (2, C) values on all images.
        halves: (S, 2, 2, C) values in the halves of S splits: by split, half, vector and class.

    Returns:
        The correlation, with an interval for at least `LEAST_RANKED` classes without NaN in a half.

    Example:
        >>> import numpy as np
        >>> counts = ClassCounts(np.full(6, 50), [20, 30, 25, 35, 40, 45])
        >>> norms = np.arange(6.0)
        >>> halves = np.stack([split_counts(counts), fixed_halves(norms)], axis=2)
        >>> found = rank_correlation(np.stack([counts.accuracy, norms]), halves).estimate()
        >>> round(found.value, 2), found.low > 0, found.high
        (0.94, True, 1.0)
    """
    # Equal means may differ in the last bits, so the values are rounded before ranking.
    full = ranks(np.round(values, 9))
    classes = full.shape[1]
    if classes < 2 or (np.ptp(full, axis=1) == 0).any():
        return _without_interval(math.nan)
    value = float(np.clip(row_correlations(full[0], full[1]), -1, 1))
    if classes < LEAST_RANKED or np.isnan(halves).any():
        return _without_interval(value)
    ranked = ranks(np.round(halves, 9))
    ranked -= ranked.mean(axis=-1, keepdims=True)
    first, second = ranked[:, 0], ranked[:, 1]
    between = first - second
    errors = _ORDER_ERROR * np.einsum("sac,sbc->abc", between, between) / (4 * len(between))
    scatter = np.einsum("sac,sbc->ab", first, second) / len(first)
    step = 12 / (classes**3 - classes)  # two neighbouring ranks are exchanged
    return _correlation(value, ranked.mean(axis=(0, 1)), errors, (scatter + scatter.T) / 2, step)


@checked
def split_counts(counts: ClassCounts, seed: Seed = 0) -> FloatArray:
    """Class accuracies in random halves of the images: (S, 2, C); NaN for a half without images."""
    generator = np.random.default_rng(seed)
    odd = (generator.random((SPLITS, counts.num_classes)) < 0.5) * (counts.count % 2)
    size = counts.count // 2 + odd
    drawn = generator.hypergeometric(
        np.broadcast_to(counts.correct, size.shape), np.broadcast_to(counts.count - counts.correct, size.shape), size
    )
    return np.stack([ratio(drawn, size), ratio(counts.correct - drawn, counts.count - size)], axis=1)


def fixed_halves(values: FloatArray) -> FloatArray:
    """Known numbers (C,) as the equal values of all halves: (S, 2, C)."""
    return np.broadcast_to(values, (SPLITS, 2, len(values)))


@checked
def random_halves(labels: IntArray, index: IntArray | None = None, seed: Seed = 0) -> BoolArray:
    """Random halves of the images of each class: (S, N), true in the second half.

    Args:
        labels: (N,) classes, from 0.
        index: (N,) numbers of the images, from 0: sets of the same images have the same halves. None: 0 .. N-1.
        seed: seed of the splits.
    """
    number = np.arange(len(labels)) if index is None else index
    count = np.bincount(labels)
    halves = np.zeros((SPLITS, len(labels)), dtype=np.bool_)
    for split in range(SPLITS):
        keys = np.random.default_rng((seed, split)).random(int(number.max(initial=0)) + 1)[number]
        order = np.lexsort((keys, labels))
        odd = count % 2 * (np.random.default_rng((seed, split, 1)).random(len(count)) < 0.5)
        halves[split, order] = place_in_class(labels[order]) >= (count // 2 + odd)[labels[order]]
    return halves


def half_means(values: FloatArray | BoolArray, labels: IntArray, num_classes: int, halves: BoolArray) -> FloatArray:
    """Class means of K quantities in halves of the images: (S, 2, K, C); NaN for a half without images.

    Args:
        values: (K, N) numbers or truth values.
        labels: (N,) classes in 0 .. C-1.
        num_classes: C.
        halves: (S, N) halves, of `random_halves`.
    """
    means = np.full((len(halves), 2, len(values), num_classes), np.nan)
    for label in np.unique(labels):
        mine = labels == label
        second, own = halves[:, mine].astype(np.float64), values[:, mine].astype(np.float64)
        size = second.sum(axis=1, keepdims=True)
        later = second @ own.T
        means[:, 0, :, label] = ratio(own.sum(axis=1) - later, own.shape[1] - size)
        means[:, 1, :, label] = ratio(later, size)
    return means
