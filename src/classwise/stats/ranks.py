"""Agreement of rankings of the classes: rank correlations and Kendall's W, with permutation tests.

The null hypothesis of the tests is exchangeability of the class labels: the rankings are independent of each other.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Count, Seed
from classwise.stats.counts import FloatArray, IntArray, ratio

ENUMERATED = 8
"""Up to this number of classes all permutations are enumerated (40,320); for more a random sample is used."""


class Association(NamedTuple):
    """Correlation of two lists of numbers, or concordance of several rankings.

    Attributes:
        value: correlation in -1 .. 1, NaN if one of the lists is constant; or Kendall's W, 0 (no agreement) .. 1
            (identical rankings), NaN if all rankings are constant.
        p_value: two-sided p-value of a correlation; p-value of a permutation test of Kendall's W.
    """

    value: float
    p_value: float


@checked
def ranks(values: ArrayLike) -> FloatArray:
    """Ranks from 1 along the last axis; ties have their mean rank."""
    from scipy import stats  # takes a second

    ranked: FloatArray = stats.rankdata(np.asarray(values, dtype=np.float64), axis=-1)
    return ranked


@checked
def pearson(first: ArrayLike, second: ArrayLike, *, permutations: Count = 9999, seed: Seed = 0) -> Association:
    """Pearson's correlation of two lists (n,), with a permutation p-value.

    Args:
        first: (n,) numbers; pairs with a value that is not finite are excluded.
        second: (n,) numbers.
        permutations: number of random permutations, used for more than `ENUMERATED` pairs.
        seed: seed of the permutations.

    Raises:
        ClasswiseError: if the lengths differ, or fewer than three pairs are finite.
    """
    x, y = _known(first, second)
    value = _correlation(x, y[None])[0]
    orders = _orders(len(y), permutations, seed)
    return Association(float(value), _tail(np.abs(_correlation(x, y[orders])), abs(value), len(y)))


@checked
def spearman(first: ArrayLike, second: ArrayLike, *, permutations: Count = 9999, seed: Seed = 0) -> Association:
    """Spearman's rank correlation with mid-ranks for ties; see `pearson` for the arguments."""
    x, y = _known(first, second)
    return pearson(ranks(x), ranks(y), permutations=permutations, seed=seed)


@checked
def kendall(first: ArrayLike, second: ArrayLike) -> Association:
    """Kendall's tau-b; its p-value is exact for short lists without ties, else from the normal approximation.

    Raises:
        ClasswiseError: if the lengths differ, or fewer than three pairs are finite.
    """
    from scipy import stats  # takes a second

    x, y = _known(first, second)
    tau = stats.kendalltau(x, y)
    return Association(float(tau.statistic), float(tau.pvalue))


def row_correlations(first: FloatArray, second: FloatArray) -> FloatArray:
    """Pearson's correlation of each row of an array (..., n) with that of another; NaN if one of them is constant."""
    a, b = (values - values.mean(axis=-1, keepdims=True) for values in (first, second))
    return ratio((a * b).sum(axis=-1), np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1)))


@checked
def spearman_matrix(rows: ArrayLike) -> FloatArray:
    """Spearman's correlations (..., m, m) of all pairs of rows of each (m, n) matrix of a (..., m, n) array."""
    centred = ranks(_rankings(rows))
    centred = centred - centred.mean(axis=-1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=-1))
    return ratio(centred @ np.swapaxes(centred, -1, -2), length[..., :, None] * length[..., None, :])


@checked
def kendalls_w(rows: ArrayLike, *, permutations: Count = 9999, seed: Seed = 0) -> Association:
    """Kendall's coefficient of concordance, corrected for ties, with a permutation p-value.

    W = 12 S / (m^2 (n^3 - n) - m sum(t^3 - t)) with S the sum of squared deviations of the rank sums and t the sizes of
    the ties of each ranking. The test permutes each ranking independently.

    Args:
        rows: (m, n) values to rank, m >= 2 rankings of n >= 2 items, without NaN.
        permutations: number of random permutations.
        seed: seed of the permutations.

    Raises:
        ClasswiseError: if there are fewer than two rows or two columns, or NaN.
    """
    values = _rankings(rows)
    if values.ndim != 2:
        raise ClasswiseError(f"rankings: expected an array of two dimensions, got shape {values.shape}")
    ranked = ranks(values)
    judges, items = ranked.shape
    ties = sum(float((size**3 - size).sum()) for size in (np.unique(row, return_counts=True)[1] for row in ranked))
    whole = judges**2 * (items**3 - items) - judges * ties
    if not whole:
        return Association(math.nan, math.nan)
    value = float(12 * _scatter(ranked.sum(axis=0)) / whole)
    generator = np.random.default_rng(seed)
    sums = np.zeros((permutations, items))
    for row in ranked:
        sums += generator.permuted(np.tile(row, (permutations, 1)), axis=1)
    reached = int(np.count_nonzero(12 * _scatter(sums) / whole >= value - 1e-12))
    return Association(value, (1 + reached) / (1 + permutations))


def _scatter(sums: FloatArray) -> FloatArray:
    return np.asarray(((sums - sums.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1))


def _rankings(rows: ArrayLike) -> FloatArray:
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim < 2 or min(values.shape[-2:]) < 2 or np.isnan(values).any():
        raise ClasswiseError(
            f"rankings: expected at least two rows and two columns without NaN, got shape {values.shape}"
        )
    return values


def _known(first: ArrayLike, second: ArrayLike) -> tuple[FloatArray, FloatArray]:
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ClasswiseError(f"correlation: expected two lists of equal length, got shapes {x.shape} and {y.shape}")
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 3:
        raise ClasswiseError(f"correlation: {known.sum()} pairs of finite values; at least 3 are required")
    return x[known], y[known]


def _correlation(x: FloatArray, rows: FloatArray) -> FloatArray:
    a, b = x - x.mean(), rows - rows.mean(axis=1, keepdims=True)
    return ratio(b @ a, np.sqrt((a**2).sum() * (b**2).sum(axis=1)))


def _orders(items: int, permutations: int, seed: int) -> IntArray:
    if items <= ENUMERATED:
        return np.array(list(itertools.permutations(range(items))), dtype=np.int64)
    return np.random.default_rng(seed).permuted(np.tile(np.arange(items), (permutations, 1)), axis=1)


def _tail(permuted: FloatArray, value: float, items: int) -> float:
    """The share of permutations whose value is at least the observed one; the observed order counts as one of them."""
    if math.isnan(value):
        return math.nan
    reached, observed = int(np.count_nonzero(permuted >= value - 1e-12)), int(items > ENUMERATED)
    return (observed + reached) / (observed + len(permuted))
