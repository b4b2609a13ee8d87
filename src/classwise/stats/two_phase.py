"""Two-phase (double) sampling: the accuracy under an expensive suite, of which the rest runs on a sample of survivors.

Phase 1, the cheap attacks, runs on all images. Unknown is on how many of its survivors the remaining attacks succeed.
Phase 2 runs them on survivors in a random order, until the intervals are as narrow as requested. Every interval is
computed from how far this order has been followed, and is valid however far that is.

For these images (population F, the order random), the number K of successes on B survivors is in two confidence
sequences for sampling without replacement (`classwise.stats.confidence_sequence`), which share the error level:

- pooled: of all survivors, the first in the order;
- stratified: once every survivor of low margin was attacked, their successes are known, and the sequence is of the
  others. The stratum is fixed before sampling, so the interval is valid whether or not the margins predict anything.

A sequence covers K at all times simultaneously. So sampling may be planned from the results (`next_sample`), a class
may be sampled further than others, and the sample may end anywhere; the plan affects the cost only. For new images
(population P), the number of robust images is binomial: the interval of Clopper and Pearson at both ends of the
interval for these images, where the two share the error level (Bonferroni).

Sources: Neyman, JASA 1938 (double sampling); Waudby-Smith and Ramdas, NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Distance, Level, checked
from classwise.stats.confidence_sequence import SAMPLING_SHARE, SuccessBounds, success_bounds
from classwise.stats.counts import (
    BoolArray,
    ClassCounts,
    FloatArray,
    IntArray,
    class_labels,
    place_in_class,
    ratio,
    whole_numbers,
)
from classwise.stats.intervals import Interval, clopper_pearson, lowest_interval

T = TypeVar("T", float, FloatArray)

UNKNOWN = -1
"""The result on a survivor that was not attacked in phase 2; 1 is a success of an attack, 0 none."""
LOW_SHARE = 0.2
"""Share of the survivors of each class that are in its stratum of low margin."""
PRIOR = (0.2, 20.0)
"""Beta-binomial prior of the share of survivors on which phase 2 succeeds; it affects the widths, not the validity."""
POOLED_SHARE = 0.75
"""Share of the error level for the pooled sequence; the stratified one has the rest."""
ROUNDING = 1e-9
"""Bound of the rounding error of a difference of two accuracies."""
SMALLEST_STEP = 16
"""A sample is extended by at least this many images, and at most doubled."""
_GRID = np.linspace(0, 1, 64)[:, None]
"""Sizes that a plan considers, on a geometric scale from the current size to the whole pool."""


@dataclass(frozen=True, eq=False)
class Survivors:
    """The survivors of phase 1, in the random order in which they are sampled.

    Args:
        images: (C,) number of images of each class.
        label: (S,) class of each survivor.
        low: (S,) whether it is in its class's stratum of low margin.

    Raises:
        ClasswiseError: if the lengths differ, there is no image, or a class has more survivors than images.
    """

    images: IntArray
    label: IntArray
    low: BoolArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", whole_numbers(self.images, "images"))
        object.__setattr__(self, "label", class_labels(self.label, len(self.images)))
        if np.shape(self.low) != self.label.shape:
            raise ClasswiseError(f"low: expected one value for each of the {len(self.label)} survivors")
        if not self.images.sum():
            raise ClasswiseError("images: no class has an image; at least one class must have images")
        many = np.flatnonzero(self.pool[1:] > self.images)
        if len(many):
            label = int(many[0])
            raise ClasswiseError(
                f"class {label}: {self.pool[label + 1]} survivors of {self.images[label]} images; "
                "survivors must be between 0 and the number of images"
            )

    def __len__(self) -> int:
        return len(self.label)

    @cached_property
    def pool(self) -> IntArray:
        """(1 + C,) number of survivors: of all classes, then of each class; so are all arrays of units."""
        return np.bincount(self.units.ravel(), minlength=len(self.images) + 1)

    @cached_property
    def rest(self) -> IntArray:
        """(1 + C,) number of survivors outside the strata of low margin."""
        return np.bincount(self.units[:, ~self.low].ravel(), minlength=len(self.images) + 1)

    @cached_property
    def sizes(self) -> IntArray:
        """(1 + C,) number of images."""
        return np.concatenate([[self.images.sum()], self.images])

    @cached_property
    def units(self) -> IntArray:
        """(2, S) the two units of each survivor: 0, all classes together, and 1 + its class."""
        return np.stack([np.zeros_like(self.label), self.label + 1])

    @cached_property
    def rank(self) -> IntArray:
        """(2, S) position of each survivor in the order of each of its units."""
        return np.stack([place_in_class(unit) for unit in self.units])

    @cached_property
    def rest_rank(self) -> IntArray:
        """(2, S) the same among the survivors outside the strata of low margin; beyond every pool for the others."""
        ranks = np.full(self.units.shape, len(self.label))
        ranks[:, ~self.low] = [place_in_class(unit) for unit in self.units[:, ~self.low]]
        return ranks


def low_margin(label: ArrayLike, margin: ArrayLike, share: float = LOW_SHARE) -> BoolArray:
    """The survivors of lowest margin in each class, (S,): the given share of the class, rounded down.

    Args:
        label: (S,) class of each survivor.
        margin: (S,) any score, such as the logit margin after phase 1; the first of equal ones are taken.
        share: between 0 and 1.
    """
    truth, score = whole_numbers(label, "label"), np.asarray(margin, dtype=np.float64)
    order = np.lexsort((score, truth))
    rank = np.empty_like(truth)
    rank[order] = place_in_class(truth[order])
    low: BoolArray = rank < np.floor(share * np.bincount(truth, minlength=1))[truth] if len(truth) else truth > 0
    return low


class Sample(NamedTuple):
    """How far the order of each unit has been followed, and with what results; (1 + C,) arrays.

    Attributes:
        drawn: length of the longest prefix of the order whose results are all known.
        hits: successes in it.
        rest_drawn: the same in the order of the survivors outside the strata of low margin.
        rest_hits: successes in it.
        low_hits: known successes in the strata of low margin.
        low_known: whether all results in the strata of low margin are known.
        known_hits: all known successes.
        known_robust: known failures of all attacks.
    """

    drawn: IntArray
    hits: IntArray
    rest_drawn: IntArray
    rest_hits: IntArray
    low_hits: IntArray
    low_known: BoolArray
    known_hits: IntArray
    known_robust: IntArray


def sample_of(survivors: Survivors, success: IntArray) -> Sample:
    """The sample of every unit, from the results (S,): 1, 0 or `UNKNOWN`."""
    units, low = survivors.units, survivors.low

    def count(mask: BoolArray) -> IntArray:
        return np.bincount(units[:, mask].ravel(), minlength=len(survivors.pool))

    def prefix(rank: IntArray, pool: IntArray, mask: BoolArray) -> tuple[IntArray, IntArray]:
        drawn, unknown = pool.copy(), mask & (success < 0)
        np.minimum.at(drawn, units[:, unknown], rank[:, unknown])
        hit = (rank < drawn[units]) & mask & (success > 0)
        return drawn, np.bincount(units[hit], minlength=len(pool))

    everything = np.ones(len(survivors), dtype=np.bool_)
    return Sample(
        *prefix(survivors.rank, survivors.pool, everything),
        *prefix(survivors.rest_rank, survivors.rest, ~low),
        low_hits=count(low & (success > 0)),
        low_known=count(low & (success < 0)) == 0,
        known_hits=count(success > 0),
        known_robust=count(success == 0),
    )


def _bounds(survivors: Survivors, sample: Sample, alpha: float) -> SuccessBounds:
    """Bounds of the number of successes K of each unit, at error level ``alpha`` each."""
    pooled = success_bounds(survivors.pool, sample.drawn, sample.hits, PRIOR, POOLED_SHARE * alpha)
    rest = success_bounds(survivors.rest, sample.rest_drawn, sample.rest_hits, PRIOR, (1 - POOLED_SHARE) * alpha)
    least = np.where(sample.low_known, np.maximum(pooled.least, sample.low_hits + rest.least), pooled.least)
    most = np.where(sample.low_known, np.minimum(pooled.most, sample.low_hits + rest.most), pooled.most)
    least = np.maximum(least, sample.known_hits)
    # The bounds cross only if one of them does not cover K.
    return SuccessBounds(least, np.maximum(np.minimum(most, survivors.pool - sample.known_robust), least))


def _successes(survivors: Survivors, sample: Sample) -> FloatArray:
    """Estimated number of successes of each unit; without a sample of a class, at the rate of all classes."""
    rate = np.nan_to_num(ratio(sample.hits, sample.drawn), nan=0.0)
    rate = np.where(sample.drawn > 0, rate, rate[0])
    rest_rate = np.nan_to_num(ratio(sample.rest_hits, sample.rest_drawn), nan=0.0)
    stratified = sample.low_known & (sample.rest_drawn > 0)
    total = np.where(stratified, sample.low_hits + survivors.rest * rest_rate, survivors.pool * rate)
    return np.asarray(total)


class SampledAccuracy(NamedTuple, Generic[T]):
    """An estimated accuracy with two intervals, fractions; or those of all classes, (C,), NaN for absent classes.

    Attributes:
        value: the estimate.
        low: lower end of the interval for these images; the probability is over the random order.
        high: upper end.
        new_low: lower end of the interval for new images of the same classes.
        new_high: upper end.
    """

    value: T
    low: T
    high: T
    new_low: T
    new_high: T


@dataclass(frozen=True, eq=False)
class TwoPhaseEstimate:
    """Accuracies under both phases together, estimated from a sample of the survivors of phase 1.

    Attributes:
        overall: the accuracy on all images.
        worst: the lowest class accuracy, whichever class it is.
        label: the class of lowest estimate.
        possibly: classes that may be the worst of these images; the true one is among them at the confidence.
        classes: each class; its intervals are not simultaneous.
        survivors: (C,) number of survivors of phase 1.
        drawn: (C,) number of survivors on which phase 2 ran.
        settled: whether both ends of the intervals of ``overall`` and ``worst`` for these images are within the
            requested distance of the estimate.
        alpha: 1 minus the confidence.
    """

    overall: SampledAccuracy[float]
    worst: SampledAccuracy[float]
    label: int
    possibly: tuple[int, ...]
    classes: SampledAccuracy[FloatArray]
    survivors: IntArray
    drawn: IntArray
    settled: bool
    alpha: float


class State(NamedTuple):
    """Estimates and intervals for these images, (1 + C,) accuracies; infinity for absent classes."""

    value: FloatArray
    low: FloatArray
    high: FloatArray
    lower: FloatArray
    upper: FloatArray


def state_of(survivors: Survivors, sample: Sample, alpha: float) -> State:
    """Estimates; intervals of each unit; and the bounds whose minima are the ends for the worst class.

    The lower end is too high only if the bound of the worst class itself fails, so ``lower`` has the level alpha / 2.
    Any class whose bound fails can make the upper end too low, so ``upper`` has alpha / (2 C).
    """
    classes = int((survivors.images > 0).sum())
    own, half, shared = (_bounds(survivors, sample, level) for level in (alpha, alpha / 2, alpha / (2 * classes)))
    successes = np.clip(_successes(survivors, sample), own.least, own.most)
    values = (successes, own.most, own.least, half.most, shared.least)
    return State(*(_accuracy(survivors, count) for count in values))


def _accuracy(survivors: Survivors, successes: FloatArray | IntArray) -> FloatArray:
    return np.where(survivors.sizes > 0, (survivors.pool - successes) / np.maximum(survivors.sizes, 1), np.inf)


def far_ends(state: State, settle: float) -> tuple[bool, BoolArray, BoolArray]:
    """Which ends are too far from the estimate: of the overall accuracy; of classes, lower and upper (C,)."""
    limit = settle + ROUNDING
    overall = bool(max(state.value[0] - state.low[0], state.high[0] - state.value[0]) > limit)
    value, lower, upper = state.value[1:], state.lower[1:], state.upper[1:]
    worst = value.min()
    below = (worst - lower > limit) & np.isfinite(value)
    above = np.zeros_like(below)
    above[value.argmin()] = upper.min() - worst > limit
    return overall, below, above


@checked
def two_phase_estimate(
    survivors: Survivors, success: ArrayLike, settle: Distance, alpha: Level = 0.05
) -> TwoPhaseEstimate:
    """Estimate the accuracies from the results so far; valid for any results that were obtained by `next_sample`.

    Args:
        survivors: the survivors in their random order.
        success: (S,) results: 1, 0, or `UNKNOWN`.
        settle: as in `next_sample`; decides ``settled`` only.
        alpha: 1 minus the confidence of each interval.

    Raises:
        ClasswiseError: if ``settle`` or ``alpha`` is out of range.

    Example:
        >>> survivors = Survivors(np.array([100, 100]), label=np.tile([0, 1], 40), low=np.zeros(80, dtype=bool))
        >>> result = two_phase_estimate(survivors, [0] * 60 + [-1] * 20, settle=0.02)
        >>> result.overall.value, result.overall.high
        (0.4, 0.4)
        >>> result.overall.low < 0.4, result.settled
        (True, True)
    """
    results = np.asarray(success, dtype=np.int64)
    sample = sample_of(survivors, results)
    state = state_of(survivors, sample, alpha)
    new_units, new_lowest = _new_images(survivors, sample, alpha)
    overall, below, above = far_ends(state, settle)
    value = state.value[1:]
    label = int(value.argmin())
    columns = [np.where(np.isfinite(column), column, np.nan) for column in (*state[:3], *new_units)]
    shared = _accuracy(survivors, _bounds(survivors, sample, alpha / (2 * int((survivors.images > 0).sum()))).most)
    possibly = np.isfinite(value) & (shared[1:] <= state.upper[1:].min() + ROUNDING)
    return TwoPhaseEstimate(
        overall=SampledAccuracy(*(float(column[0]) for column in columns)),
        worst=SampledAccuracy(
            float(value[label]), float(state.lower[1:].min()), float(state.upper[1:].min()), *new_lowest
        ),
        label=label,
        possibly=tuple(int(place) for place in np.flatnonzero(possibly)),
        classes=SampledAccuracy(*(column[1:] for column in columns)),
        survivors=survivors.pool[1:],
        drawn=(sample.known_hits + sample.known_robust)[1:],
        settled=not overall and not (below | above).any(),
        alpha=alpha,
    )


def _new_images(survivors: Survivors, sample: Sample, alpha: float) -> tuple[Interval, tuple[float, float]]:
    """Intervals for new images, binomial at both ends of those for these images: of each unit, and of the minimum."""
    sampling, binomial = SAMPLING_SHARE * alpha, (1 - SAMPLING_SHARE) * alpha
    sizes, pool, classes = survivors.sizes, survivors.pool, int((survivors.images > 0).sum())
    least, most = _bounds(survivors, sample, sampling)
    low = clopper_pearson(pool - most, sizes, binomial).low
    high = clopper_pearson(pool - least, sizes, binomial).high
    lower = pool - _bounds(survivors, sample, sampling / 2).most
    upper = pool - _bounds(survivors, sample, sampling / (2 * classes)).least
    ends = (lowest_interval(ClassCounts(sizes[1:], robust[1:]), binomial) for robust in (lower, upper))
    return Interval(low, high), (next(ends)[0], next(ends)[1])


@checked
def next_sample(survivors: Survivors, success: ArrayLike, settle: Distance, alpha: Level = 0.05) -> IntArray:
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
    results = np.asarray(success, dtype=np.int64)
    sample = sample_of(survivors, results)
    state = state_of(survivors, sample, alpha)
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
