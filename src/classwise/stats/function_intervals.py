"""Intervals of any function of the rates of classes, such as a metric of one's own.

The function is evaluated at true rates that the counts do not exclude. They are drawn in three ways:

- Independent posteriors of the classes, with a Dirichlet prior of total mass 1 (for two outcomes that of Jeffreys 1946;
  for more that of Perks 1947). The rates are then further apart than the true ones.
- Tied classes: in order of their rates, classes are pooled as long as a chi-square test of homogeneity does not reject
  it (Pearson 1900), from the lowest or from the highest on. Each group has one rate, with Jeffreys' posterior.

The first alone would not do: of 100 tied classes, its interval of the minimum or of the range covers in 0 % of all
samples, because sampling error enters twice. The true rates are between the two. The ends of the interval are at
the largest distance of the value to the outer quantiles of the three, so that a bias of the value is covered, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from scipy import special

from classwise.core.settings.arguments import Level, checked
from classwise.stats.counts import ClassCounts, FloatArray, IntArray, ratio
from classwise.stats.intervals import Estimate

LEAST_IMAGES = 30
"""With fewer images in a class (or group) that has images, there is no interval."""
_DRAWS = 400
"""Number of draws of each way; fewer for many cells."""
_LEAST_DRAWS = 50
_MOST_CELLS = 20_000_000
"""Number of cells that all draws of one way have, unless they are fewer than `_LEAST_DRAWS`."""
_RESAMPLES = 1000
_QUANTILES = 4
"""Each outer quantile excludes alpha over this number, half of what it would for a smooth function of many images."""
_TIED = 0.01
"""The level of the test of homogeneity."""
_LARGE = 10**9
"""Least number of images of a class in counts that represent drawn rates."""
_STEPS = 0.5
"""A function with fewer distinct values than this share of the draws has steps."""
_UNDEFINED = 0.05
"""A function without a finite value at more than this share of the draws has no interval."""
_DISTINCT = 20
"""A bootstrap needs more distinct values than this, and than groups; fewer are those of a function with steps."""
_BIAS = 0.25
"""The largest bias of a bootstrap, in standard errors, that is ignored (Efron and Tibshirani 1993, section 10.3)."""


@checked
def interval_of_counts(function: Callable[[ClassCounts], float], counts: ClassCounts, alpha: Level = 0.05) -> Estimate:
    """A function of class accuracies with its interval, for new images of the same classes.

    The ends are NaN (no interval) if a class has fewer than `LEAST_IMAGES` images, if the value is not finite, if the
    function has steps (such as the number of classes above a threshold), or if it is no function of the class
    accuracies and the shares of the classes (such as the number of correct images).

    Args:
        function: maps counts to a number.
        counts: counts of C classes.
        alpha: 1 minus the coverage.

    Example:
        >>> counts = ClassCounts([100, 100, 100], [80, 50, 20])
        >>> found = interval_of_counts(lambda counts: float(np.median(counts.accuracy)), counts)
        >>> found.value, found.low < 0.45 < 0.55 < found.high
        (0.5, True)
    """

    def represented(rates: FloatArray, images: IntArray) -> tuple[Any, ...]:
        return (ClassCounts(images, _whole(rates[:, 0] * images)),)

    return _interval(function, (counts,), counts.correct[:, None], counts.count, represented, alpha)


@checked
def interval_of_pairs(
    function: Callable[[ClassCounts, ClassCounts], float], pairs: IntArray, alpha: Level = 0.05
) -> Estimate:
    """A function of clean and robust class accuracies with its interval, as `interval_of_counts`.

    Args:
        function: maps the counts without an attack and those under it to a number.
        pairs: (C, 2, 2) numbers of images of each class: correct without an attack (0: no, 1: yes) by correct under it.
        alpha: 1 minus the coverage.
    """

    def represented(rates: FloatArray, images: IntArray) -> tuple[Any, ...]:
        both, clean, robust = rates.T
        return tuple(ClassCounts(images, _whole(np.minimum(both + only, 1) * images)) for only in (clean, robust))

    images = pairs.sum(axis=(1, 2))
    given = tuple(ClassCounts(images, correct) for correct in (pairs[:, 1].sum(axis=1), pairs[:, :, 1].sum(axis=1)))
    cells = np.stack([pairs[:, 1, 1], pairs[:, 1, 0], pairs[:, 0, 1]], axis=1)
    return _interval(function, given, cells, images, represented, alpha)


@checked
def interval_of_confusion(function: Callable[[IntArray], float], matrix: IntArray, alpha: Level = 0.05) -> Estimate:
    """A function of a confusion matrix with its interval, as `interval_of_counts`.

    Args:
        function: maps a (C, C) matrix of counts, label by prediction, to a number.
        matrix: confusion counts.
        alpha: 1 minus the coverage.
    """
    classes, wrong = len(matrix), ~np.eye(len(matrix), dtype=np.bool_)

    def represented(rates: FloatArray, images: IntArray) -> tuple[Any, ...]:
        drawn = np.zeros((classes, classes), dtype=np.int64)
        drawn[wrong] = _whole(rates * images[:, None]).ravel()
        np.fill_diagonal(drawn, np.maximum(images - drawn.sum(axis=1), 0))
        return (drawn,)

    cells = matrix[wrong].reshape(classes, classes - 1)
    return _interval(function, (matrix,), cells, matrix.sum(axis=1), represented, alpha, together=True)


@checked
def interval_of_outcomes(function: Callable[[Any], float], outcomes: Any, alpha: Level = 0.05) -> Estimate:
    """A function of the outcomes of images with a bootstrap interval (Efron 1979), for new images of the same groups.

    Images are drawn with replacement within each group. The ends are at the larger distance of the value to the two
    outer quantiles. They are NaN (no interval) if a group has fewer than `LEAST_IMAGES` images, if there are few
    distinct values, or if the bootstrap estimates its bias as more than a quarter of its standard error, as that of a
    minimum or a range over groups that tie (Efron and Tibshirani 1993).

    Args:
        function: maps the data frame to a number.
        outcomes: a row for each image, with the column ``group``.
        alpha: 1 minus the coverage.
    """
    value, groups = float(function(outcomes)), outcomes["group"].to_numpy()
    sizes = np.bincount(groups)
    if not math.isfinite(value) or sizes[sizes > 0].min() < LEAST_IMAGES:
        return Estimate(value, math.nan, math.nan)
    drawn = _finite(float(function(outcomes.take(rows))) for rows in _resampled(groups))
    distinct = len(np.unique(drawn))
    if distinct <= max(_DISTINCT, int((sizes > 0).sum()) + 1) or abs(drawn.mean() - value) > _BIAS * drawn.std():
        return Estimate(value, math.nan, math.nan)
    return _symmetric(value, [drawn], alpha)


def _interval(
    function: Callable[..., float],
    given: tuple[Any, ...],
    cells: IntArray,
    images: IntArray,
    represented: Callable[[FloatArray, IntArray], tuple[Any, ...]],
    alpha: float,
    *,
    together: bool = False,
) -> Estimate:
    """The interval of a function of rates.

    Args:
        function: maps the arguments that ``represented`` returns to a number.
        given: its arguments for the observed counts.
        cells: (C, K) numbers of images of each class with K of the K + 1 outcomes.
        images: (C,) numbers of images.
        represented: the arguments for rates (C, K) of the outcomes in so many images (C,).
        alpha: 1 minus the coverage.
        together: whether outcomes of different columns may have equal rates.
    """
    value, none = float(function(*given)), math.nan
    present = images > 0
    if not math.isfinite(value) or not present.any() or images[present].min() < LEAST_IMAGES:
        return Estimate(value, none, none)
    large = images * -(-_LARGE // int(images[present].min()))

    def at(rates: FloatArray) -> float:
        every = np.zeros(cells.shape)
        every[present] = rates
        return float(function(*represented(every, large)))

    if not math.isclose(at(cells[present] / images[present, None]), value, abs_tol=1e-9):
        return Estimate(value, none, none)
    ways = [_finite(map(at, way)) for way in _compatible(cells[present], images[present], together)]
    if all(map(_has_steps, ways)) or not all(map(len, ways)):
        return Estimate(value, none, none)
    return _symmetric(value, ways, alpha)


def _compatible(cells: IntArray, images: IntArray, together: bool) -> Iterator[Iterator[FloatArray]]:
    """Draws of the rates (C, K) that counts (C, K) of so many images (C,) do not exclude, in three ways."""
    draws = int(np.clip(_MOST_CELLS // cells.size, _LEAST_DRAWS, _DRAWS))
    generator = np.random.default_rng(0)
    yield _independent(cells, images, draws, generator)
    size = np.broadcast_to(images[:, None], cells.shape)
    for counted in (cells, size - cells):  # from the lowest rates on, and from the highest on
        if together:
            groups = _homogeneous(counted.ravel(), size.ravel()).reshape(cells.shape)
        else:
            columns = [_homogeneous(*column) for column in zip(counted.T, size.T, strict=True)]
            groups = np.stack(columns, axis=1) + len(images) * np.arange(cells.shape[1])
        yield _tied(cells, size, groups, draws, generator)


def _independent(cells: IntArray, images: IntArray, draws: int, generator: np.random.Generator) -> Iterator[FloatArray]:
    """The posterior of each class by itself, with a Dirichlet prior of total mass 1."""
    rest = images[:, None] - cells.sum(axis=1, keepdims=True)
    mass = np.hstack([cells, rest]) + 1 / (cells.shape[1] + 1)
    for _ in range(draws):
        drawn = generator.standard_gamma(mass)
        yield drawn[:, :-1] / drawn.sum(axis=1, keepdims=True)


def _tied(
    cells: IntArray, size: IntArray, groups: IntArray, draws: int, generator: np.random.Generator
) -> Iterator[FloatArray]:
    """The posterior of the common rate of each group of cells, with Jeffreys' prior."""
    hits, all_images = (np.bincount(groups.ravel(), values.ravel()) for values in (cells, size))
    for _ in range(draws):
        rates = generator.beta(hits + 0.5, all_images - hits + 0.5)[groups]
        yield rates / np.maximum(rates.sum(axis=1, keepdims=True), 1)


def _homogeneous(hits: IntArray, images: IntArray) -> IntArray:
    """Number of the group of each cell (N,): from the lowest rate on, the most cells whose rates may be equal."""
    order = np.argsort(hits / images, kind="stable")
    groups, first, number = np.zeros(len(hits), dtype=np.int64), 0, 0
    while first < len(order):
        k, n = (values[order[first:]].astype(np.float64) for values in (hits, images))
        all_hits, all_images = k.cumsum(), n.cumsum()
        expected = all_hits / all_images
        statistic = ratio((k**2 / n).cumsum() - expected * all_hits, expected * (1 - expected))
        degrees = np.arange(len(k))
        equal = (degrees == 0) | np.isnan(statistic) | (special.chdtrc(np.maximum(degrees, 1), statistic) > _TIED)
        length = int(np.flatnonzero(equal)[-1]) + 1
        groups[order[first : first + length]] = number
        first, number = first + length, number + 1
    return groups


def _resampled(groups: IntArray) -> Iterator[IntArray]:
    """Places of images that are drawn with replacement within each group (N,)."""
    generator, size = np.random.default_rng(0), np.bincount(groups)
    order, first, images = np.argsort(groups, kind="stable"), np.repeat(np.cumsum(size) - size, size), size.repeat(size)
    for _ in range(_RESAMPLES):
        yield order[first + (generator.random(len(groups)) * images).astype(np.int64)]


def _whole(numbers: FloatArray) -> IntArray:
    """The nearest integers."""
    nearest: IntArray = np.rint(numbers).astype(np.int64)
    return nearest


def _finite(values: Iterable[float]) -> FloatArray:
    """The finite ones of some numbers; none if more than `_UNDEFINED` of them are not."""
    drawn = np.fromiter(values, dtype=np.float64)
    finite = np.isfinite(drawn)
    known: FloatArray = drawn[finite & (finite.mean() >= 1 - _UNDEFINED)]
    return known


def _has_steps(drawn: FloatArray) -> bool:
    """Whether a function has few distinct values, or none."""
    return len(np.unique(drawn)) < _STEPS * max(len(drawn), 1)


def _symmetric(value: float, ways: list[FloatArray], alpha: float) -> Estimate:
    """The interval to the largest distance to outer quantiles; within [0, 1], or above 0, if all values are."""
    outer = alpha / _QUANTILES
    reach = max(float(np.abs(np.quantile(way, [outer, 1 - outer]) - value).max()) for way in ways)
    low, high = value - reach, value + reach
    every = np.concatenate([*ways, [value]])
    if every.min() >= 0:
        low = max(low, 0.0)
        high = min(high, 1.0) if every.max() <= 1 else high
    return Estimate(value, low, high)
