"""The plan of a two-phase sample: which survivors to attack next, from the results so far.

The plan affects the cost only: the intervals of `classwise.stats.two_phase` are valid for every plan.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from classwise.stats.confidence_sequence import success_bounds
from classwise.stats.counts import BoolArray, FloatArray, IntArray, ratio
from classwise.stats.intervals import checked_level
from classwise.stats.two_phase import (
    POOLED_SHARE,
    PRIOR,
    Sample,
    Survivors,
    checked_settle,
    far_ends,
    sample_of,
    state_of,
)

SMALLEST_STEP = 16
"""A sample is extended by at least this many images, and at most doubled."""
_GRID = np.linspace(0, 1, 64)[:, None]
"""Sizes that a plan considers, on a geometric scale from the current size to the whole pool."""


def next_sample(survivors: Survivors, success: ArrayLike, settle: float, alpha: float = 0.05) -> IntArray:
    """The survivors to attack next, given all results so far.

    First the overall accuracy is sampled, then the classes that decide the lowest accuracy. A sample is planned as if
    further successes came at the rate seen so far, and at most doubled. Where that is cheaper, all survivors of low
    margin are attacked first, and a sample of the others.

    Args:
        survivors: the survivors in their random order.
        success: (S,) results so far: 1, 0, or `UNKNOWN`.
        settle: largest distance (a fraction) of the ends of the intervals for these images from the estimate, of the
            overall and of the lowest class accuracy.
        alpha: 1 minus the confidence of each of the two intervals.

    Returns:
        Positions of survivors with unknown results, ascending; empty once the intervals are narrow enough.

    Raises:
        ClasswiseError: if ``settle`` or ``alpha`` is out of range.
    """
    checked_settle(settle)
    results = np.asarray(success, dtype=np.int64)
    sample = sample_of(survivors, results)
    state = state_of(survivors, sample, checked_level(alpha))
    overall, below, above = far_ends(state, settle)
    if not overall and not (below | above).any():
        return np.empty(0, dtype=np.int64)
    # Successes that the ends may be away from the estimate, with the levels of the two ends.
    if overall:
        chosen = np.arange(len(survivors.pool)) == 0
        down = up = np.asarray(settle * survivors.sizes)
        levels = (alpha, alpha)
    else:
        chosen = np.concatenate([[False], below | above])
        slack = np.where(np.isfinite(state.value), state.value, 0) - state.value[1:].min()
        down = np.asarray((settle + np.maximum(slack, 0)) * survivors.sizes)
        up = np.where(np.concatenate([[False], above]), settle * survivors.sizes, np.inf)
        levels = (alpha / 2, alpha / (2 * int((survivors.images > 0).sum())))
    wanted = _planned(survivors, sample, chosen, down, up, levels)
    return np.flatnonzero(wanted & (results < 0))


def _planned(
    survivors: Survivors,
    sample: Sample,
    chosen: BoolArray,
    down: FloatArray,
    up: FloatArray,
    levels: tuple[float, float],
) -> BoolArray:
    """The survivors to have results on after the next sample of the chosen units, (S,)."""
    pools = survivors.pool, sample.drawn, sample.hits
    rests = survivors.rest, sample.rest_drawn, sample.rest_hits
    pooled = _needed(*pools, down, up, levels, POOLED_SHARE)
    stratified = _needed(*rests, down, up, levels, 1 - POOLED_SHARE)
    low_size = survivors.pool - survivors.rest
    low_cost = np.where(sample.low_known, 0, low_size - sample.drawn * low_size // np.maximum(survivors.pool, 1))
    first = low_cost + stratified - sample.rest_drawn < pooled - sample.drawn
    limits = [
        np.where(drawn > 0, np.minimum(needed, np.maximum(2 * drawn, drawn + SMALLEST_STEP)), needed)
        for needed, drawn in ((pooled, sample.drawn), (stratified, sample.rest_drawn))
    ]
    units, wanted = survivors.units, np.zeros(len(survivors), dtype=np.bool_)
    for row, rank, rest_rank in zip(units, survivors.rank, survivors.rest_rank, strict=True):
        by_pool, by_stratum = rank < limits[0][row], survivors.low | (rest_rank < limits[1][row])
        wanted |= chosen[row] & np.where(first[row], by_stratum, by_pool)
    return wanted


def _needed(
    pool: IntArray,
    drawn: IntArray,
    hits: IntArray,
    down: FloatArray,
    up: FloatArray,
    levels: tuple[float, float],
    share: float,
) -> IntArray:
    """Sample sizes (U,) at which the bounds are expected to be within ``down`` and ``up`` successes of the estimate."""
    start = np.maximum(np.minimum(drawn + 1, pool), 1)
    size = np.ceil(start * (np.maximum(pool, 1) / start) ** _GRID).astype(np.int64)
    size = np.minimum(size, pool)
    expected = hits + np.rint((size - drawn) * np.nan_to_num(ratio(hits, drawn), nan=0.0)).astype(np.int64)
    most = success_bounds(pool, size, expected, PRIOR, share * levels[0]).most
    same = levels[0] == levels[1] or not np.isfinite(up).any()
    least = success_bounds(pool, size, expected, PRIOR, share * levels[0 if same else 1]).least
    estimate = np.nan_to_num(pool * ratio(expected, size), nan=0.0)
    enough = ((most - estimate <= down) & (estimate - least <= up)) | (size == pool)
    return np.asarray(np.take_along_axis(size, enough.argmax(0)[None], 0)[0])
