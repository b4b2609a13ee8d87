"""Do several rankings of the classes agree? Rank correlations and Kendall's W, with permutation tests.

The population of the p-values is the exchange of class labels: how often would rankings that know nothing of each other
agree as well as these.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import FloatArray, IntArray, ratio

ENUMERATED = 8
"""Up to so many classes every permutation is tried (40,320); beyond, a random sample of them."""


class Association(NamedTuple):
    """How two lists of numbers go together.

    Attributes:
        value: in -1 .. 1; NaN if one of them does not vary.
        p_value: two-sided.
    """

    value: float
    p_value: float


class Agreement(NamedTuple):
    """How several rankings agree.

    Attributes:
        value: Kendall's W, 0 (none) .. 1 (the same ranking); NaN without variation.
        p_value: by permutation.
    """

    value: float
    p_value: float


def ranks(values: ArrayLike) -> FloatArray:
    """Ranks from 1 along the last axis, ties sharing their mean rank."""
    found: FloatArray = stats.rankdata(np.asarray(values, dtype=np.float64), axis=-1)
    return found


def pearson(first: ArrayLike, second: ArrayLike, *, permutations: int = 9999, seed: int = 0) -> Association:
    """The linear correlation of two lists (n,), with a permutation p-value.

    Args:
        first: (n,) numbers; a place where either is NaN is left out.
        second: (n,) the same.
        permutations: how many are drawn where there are too many to try all.
        seed: of those draws.

    Raises:
        ClasswiseError: if the lengths differ, or fewer than three places are known.
    """
    x, y = _known(first, second)
    value = _correlation(x, y[None])[0]
    orders = _orders(len(y), permutations, seed)
    return Association(float(value), _tail(np.abs(_correlation(x, y[orders])), abs(value), len(y)))


def spearman(first: ArrayLike, second: ArrayLike, *, permutations: int = 9999, seed: int = 0) -> Association:
    """Spearman's rank correlation with mid-ranks for ties; arguments as for `pearson`."""
    x, y = _known(first, second)
    return pearson(ranks(x), ranks(y), permutations=permutations, seed=seed)


def kendall(first: ArrayLike, second: ArrayLike) -> Association:
    """Kendall's tau-b; its p-value is exact without ties in short lists, else the normal approximation.

    Raises:
        ClasswiseError: as `pearson` does.
    """
    x, y = _known(first, second)
    found = stats.kendalltau(x, y)
    return Association(float(found.statistic), float(found.pvalue))


def spearman_matrix(rows: ArrayLike) -> FloatArray:
    """(m, m) Spearman's correlation of every pair of the rows of (m, n)."""
    centred = ranks(_matrix(rows))
    centred = centred - centred.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1))
    return ratio(centred @ centred.T, np.outer(length, length))


def kendalls_w(rows: ArrayLike, *, permutations: int = 9999, seed: int = 0) -> Agreement:
    """Kendall's coefficient of concordance, corrected for ties, with a permutation p-value.

    W = 12 S / (m^2 (n^3 - n) - m sum(t^3 - t)), S the squared deviations of the rank sums, t the sizes of the ties of
    each ranking. The test permutes every ranking by itself.

    Args:
        rows: (m, n), a row for each of m >= 2 judges, without NaN.
        permutations: how many are drawn.
        seed: of the draws.

    Raises:
        ClasswiseError: if there are fewer than two rows or two columns, or NaN.
    """
    ranked = ranks(_matrix(rows))
    judges, items = ranked.shape
    ties = sum(float((size**3 - size).sum()) for size in (np.unique(row, return_counts=True)[1] for row in ranked))
    whole = judges**2 * (items**3 - items) - judges * ties
    if not whole:
        return Agreement(math.nan, math.nan)
    value = float(12 * _scatter(ranked.sum(axis=0)) / whole)
    generator = np.random.default_rng(seed)
    sums = np.zeros((permutations, items))
    for row in ranked:
        sums += generator.permuted(np.tile(row, (permutations, 1)), axis=1)
    reached = int(np.count_nonzero(12 * _scatter(sums) / whole >= value - 1e-12))
    return Agreement(value, (1 + reached) / (1 + permutations))


def _scatter(sums: FloatArray) -> FloatArray:
    return np.asarray(((sums - sums.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1))


def _matrix(rows: ArrayLike) -> FloatArray:
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2 or min(values.shape) < 2 or np.isnan(values).any():
        raise ClasswiseError(
            f"rankings: expected two rows and two classes or more without gaps, got shape {values.shape}"
        )
    return values


def _known(first: ArrayLike, second: ArrayLike) -> tuple[FloatArray, FloatArray]:
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ClasswiseError(f"correlation: expected two lists of one length, got shapes {x.shape} and {y.shape}")
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 3:
        raise ClasswiseError(f"correlation: {known.sum()} places are known in both lists; at least 3 are needed")
    return x[known], y[known]


def _correlation(x: FloatArray, rows: FloatArray) -> FloatArray:
    a, b = x - x.mean(), rows - rows.mean(axis=1, keepdims=True)
    return ratio(b @ a, np.sqrt((a**2).sum() * (b**2).sum(axis=1)))


def _orders(items: int, permutations: int, seed: int) -> IntArray:
    if items <= ENUMERATED:
        return np.array(list(itertools.permutations(range(items))), dtype=np.int64)
    return np.random.default_rng(seed).permuted(np.tile(np.arange(items), (permutations, 1)), axis=1)


def _tail(found: FloatArray, value: float, items: int) -> float:
    """The share of permutations that reach the value; the data's own order is one of them."""
    if math.isnan(value):
        return math.nan
    reached, more = int(np.count_nonzero(found >= value - 1e-12)), int(items > ENUMERATED)
    return (more + reached) / (more + len(found))
