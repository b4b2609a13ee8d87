"""Two-phase sampling: coverage at every stopping time, exactly on small populations; monotony; the end of a sample."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.stats.confidence_sequence import SAMPLING_SHARE, success_bounds
from classwise.stats.counts import ClassCounts, IntArray
from classwise.stats.intervals import clopper_pearson, lowest_interval
from classwise.stats.two_phase import (
    POOLED_SHARE,
    PRIOR,
    UNKNOWN,
    Survivors,
    TwoPhaseEstimate,
    low_margin,
    next_sample,
    two_phase_estimate,
)
from tests.refusals import check_refused


class Outcome(NamedTuple):
    """The results of all samples of one order, and the truth."""

    results: list[TwoPhaseEstimate]
    success: IntArray
    overall: float
    worst: float


def run(survivors: Survivors, truth: IntArray, settle: float, alpha: float = 0.05) -> Outcome:
    """Sample until the intervals are narrow, with an estimate after each sample."""
    success = np.full(len(survivors), UNKNOWN)
    results = [two_phase_estimate(survivors, success, settle, alpha)]
    while len(places := next_sample(survivors, success, settle, alpha)):
        assert (success[places] == UNKNOWN).all()
        success[places] = truth[places]
        results.append(two_phase_estimate(survivors, success, settle, alpha))
    robust = np.bincount(survivors.label[truth == 0], minlength=len(survivors.images))
    present = survivors.images > 0
    worst = (robust[present] / survivors.images[present]).min()
    return Outcome(results, success, robust.sum() / survivors.images.sum(), worst)


def population(sizes: list[int], images: list[int], seed: int, rate: float) -> tuple[Survivors, IntArray]:
    """Survivors in a random order; successes at a rate, more at low margins."""
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(len(sizes)), sizes)
    margin = rng.random(len(label))
    truth = (rng.random(len(label)) < rate * 2 * (1 - margin)).astype(np.int64)
    order = rng.permutation(len(label))
    return Survivors(np.array(images), label[order], low_margin(label, margin)[order]), truth[order]


@pytest.mark.parametrize("share", [POOLED_SHARE, 1 - POOLED_SHARE, 1.0])
@pytest.mark.parametrize(("pool", "alpha"), [(1, 0.3), (9, 0.3), (24, 0.05), (40, 0.2)])
@pytest.mark.parametrize("prior", [PRIOR, (0.5, 2.0)])
def test_a_sequence_covers_at_every_stopping_time_exactly(
    prior: tuple[float, float], pool: int, alpha: float, share: float
) -> None:
    """For every number K of further successes: the probability that K is ever outside the bounds."""
    level, hits, totals = share * alpha, np.arange(pool + 1), np.arange(pool + 1)[:, None]
    alive = np.zeros((pool + 1, pool + 1))  # probability of k hits so far, K inside at all times
    alive[:, 0] = 1
    for drawn in range(1, pool + 1):
        chance = np.clip((totals - hits) / (pool - drawn + 1), 0, 1)
        alive = alive * (1 - chance) + np.pad(alive * chance, ((0, 0), (1, 0)))[:, :-1]
        assert not alive[:, drawn + 1 :].any()
        bounds = success_bounds(pool, drawn, hits[: drawn + 1], prior, level)
        alive[:, : drawn + 1][(bounds.least > totals) | (bounds.most < totals)] = 0
    assert (alive.sum(axis=1) >= 1 - level - 1e-12).all()


@pytest.mark.slow
@pytest.mark.parametrize("hits", [(), (4,), (1, 2), (0, 1, 2, 3, 4)])
def test_the_intervals_cover_over_all_orders(hits: tuple[int, ...]) -> None:
    """Every order of five survivors: the share of orders in which an interval ever fails, at any sample."""
    label, low, truth = np.array([0, 0, 0, 1, 1]), np.array([1, 0, 0, 0, 1], dtype=np.bool_), np.zeros(5, np.int64)
    truth[list(hits)] = 1
    alpha, fails = 0.5, np.zeros(2)
    orders = [list(order) for order in itertools.permutations(range(5)) if order.index(1) < order.index(2)]
    for order in orders:  # survivors 1 and 2 are alike
        found = run(Survivors(np.array([5, 3]), label[order], low[order]), truth[order], 0.15, alpha)
        for place, (kind, true) in enumerate((("overall", found.overall), ("worst", found.worst))):
            intervals = [getattr(result, kind) for result in found.results]
            fails[place] += any(not interval.low - 1e-9 <= true <= interval.high + 1e-9 for interval in intervals)
        assert found.results[-1].settled
    assert (fails <= alpha * len(orders)).all()


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 0.4), st.sampled_from([0.002, 0.02, 0.1]))
def test_properties_of_every_sample(seed: int, rate: float, settle: float) -> None:
    survivors, truth = population([30, 12, 0, 3], [50, 50, 10, 3], seed, rate)
    found = run(survivors, truth, settle)
    last = found.results[-1]
    assert last.settled
    assert not any(result.settled for result in found.results[:-1])
    drawn = [int(result.drawn.sum()) for result in found.results]
    assert drawn == sorted(set(drawn))
    for estimate in (last.overall, last.worst):
        assert estimate.low - 1e-12 <= estimate.value <= estimate.high + 1e-12
        assert max(estimate.value - estimate.low, estimate.high - estimate.value) <= settle + 1e-6
        assert estimate.new_low <= estimate.low + 1e-12
        assert estimate.new_high >= estimate.high - 1e-12
    assert last.worst.value == pytest.approx(np.nanmin(last.classes.value))
    assert last.label in last.possibly


def test_a_class_without_images_is_never_the_worst() -> None:
    survivors, truth = population([30, 0, 20], [50, 0, 50], 0, 0.1)
    found = run(survivors, truth, 0.02).results[-1]
    assert np.isnan(found.classes.value[1])
    assert found.label != 1
    assert 1 not in found.possibly


def test_the_whole_sample_gives_the_numbers_of_a_full_evaluation() -> None:
    survivors, truth = population([40, 25, 30], [80, 60, 70], 3, 0.2)
    found = two_phase_estimate(survivors, truth, 0.01)
    robust = np.bincount(survivors.label[truth == 0], minlength=3)
    accuracy = robust / survivors.images
    assert found.overall[:3] == pytest.approx([robust.sum() / survivors.images.sum()] * 3)
    assert found.worst[:3] == pytest.approx([accuracy.min()] * 3)
    for column in found.classes[:3]:
        assert column == pytest.approx(accuracy)
    # Only the binomial part is left of the intervals for new images.
    level = 0.05 * (1 - SAMPLING_SHARE)
    ends = clopper_pearson(robust.sum(), survivors.images.sum(), level)
    assert found.overall[3:] == pytest.approx(tuple(map(float, ends)))
    assert found.worst[3:] == pytest.approx(lowest_interval(ClassCounts(survivors.images, robust), level))
    assert not len(next_sample(survivors, truth, 0.0001))


def test_without_a_sample_the_intervals_are_those_of_no_knowledge() -> None:
    survivors, _ = population([40, 20], [80, 60], 3, 0.2)
    found = two_phase_estimate(survivors, np.full(60, UNKNOWN), 0.01)
    assert found.overall[:3] == pytest.approx((60 / 140, 0, 60 / 140))
    assert found.worst[:3] == pytest.approx((20 / 60, 0, 20 / 60))
    assert not found.settled


def test_the_low_margins_are_attacked_where_they_hold_the_successes() -> None:
    """All successes at low margins: that stratum is attacked whole, and the others' accuracy is then known better."""
    low = np.arange(2000) < 400
    truth = np.where(low, np.arange(2000) % 2, 0)
    order = np.random.default_rng(0).permutation(2000)
    survivors = Survivors(np.array([2500]), np.zeros(2000, dtype=np.int64), low[order])
    found = run(survivors, truth[order], 0.01)
    assert (found.success[low[order]] != UNKNOWN).all()
    assert (found.success != UNKNOWN).mean() < 0.5
    blind = run(Survivors(survivors.images, survivors.label, np.zeros(2000, dtype=np.bool_)), truth[order], 0.01)
    assert (blind.success != UNKNOWN).mean() > 0.6


def test_only_the_beginning_of_an_order_counts() -> None:
    """Results beyond the first unknown one come from other samples, so they give facts and no rate."""
    survivors = Survivors(np.array([100]), np.zeros(50, dtype=np.int64), np.zeros(50, dtype=np.bool_))
    success = np.full(50, UNKNOWN)
    success[1:30] = 0
    found = two_phase_estimate(survivors, success, 0.01).overall
    assert found[:3] == pytest.approx((50 / 100, 29 / 100, 50 / 100))
    success[0] = 1
    found = two_phase_estimate(survivors, success, 0.01).overall
    assert found.value == pytest.approx((50 - 50 / 30) / 100)
    assert found.low > 0.35
    assert found.high == pytest.approx(49 / 100)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=40))
def test_the_stratum_has_the_lowest_margins_of_each_class(rows: list[tuple[int, int]]) -> None:
    label, margin = (np.array(column) for column in zip(*rows, strict=True))
    low = low_margin(label, margin, 0.4)
    for unit in np.unique(label):
        inside = label == unit
        assert low[inside].sum() == int(0.4 * inside.sum())
        assert low[inside].sum() == 0 or margin[inside & low].max() <= margin[inside & ~low].min(initial=9)


def by_hand(survivors: Survivors, success: IntArray, unit: int | None, alpha: float) -> tuple[int, int]:
    """Bounds of the number of successes, of a class or of all (None), from the definitions."""
    inside = np.ones(len(survivors), dtype=np.bool_) if unit is None else survivors.label == unit
    least, most = int((success[inside] > 0).sum()), int((success[inside] != 0).sum())
    sequences = [(inside, POOLED_SHARE * alpha, 0)]
    low = success[inside & survivors.low]
    if (low != UNKNOWN).all():
        sequences.append((inside & ~survivors.low, (1 - POOLED_SHARE) * alpha, int(low.sum())))
    for mask, level, known in sequences:
        prefix = list(itertools.takewhile(lambda result: result != UNKNOWN, success[mask].tolist()))
        bounds = success_bounds(int(mask.sum()), len(prefix), sum(prefix), PRIOR, level)
        least, most = max(least, known + int(bounds.least)), min(most, known + int(bounds.most))
    return least, max(least, most)


@pytest.mark.parametrize("seed", range(12))
def test_the_intervals_are_those_of_the_definitions(seed: int) -> None:
    """Levels, prefixes, strata and the correction for the number of classes, for arbitrary results."""
    alpha, images = 0.3, [700, 500, 600]
    survivors, truth = population([600, 350, 500], images, seed, rate=0.02 if seed % 3 else 0.2)
    rng = np.random.default_rng(seed)
    known = rng.random(1450) < 0.02
    known[: rng.integers(400, 1000)] = True
    known[survivors.low] |= seed % 2 == 0
    success = np.where(known, truth, UNKNOWN)
    found = two_phase_estimate(survivors, success, 0.01, alpha)

    def accuracy(level: float, unit: int | None) -> tuple[float, float]:
        least, most = by_hand(survivors, success, unit, level)
        pool, size = (1450, 1800) if unit is None else ((survivors.label == unit).sum(), images[unit])
        return (pool - most) / size, (pool - least) / size

    assert (found.overall.low, found.overall.high) == pytest.approx(accuracy(alpha, None))
    for label in range(3):
        assert (found.classes.low[label], found.classes.high[label]) == pytest.approx(accuracy(alpha, label))
    assert found.worst.low == pytest.approx(min(accuracy(alpha / 2, label)[0] for label in range(3)))
    assert found.worst.high == pytest.approx(min(accuracy(alpha / 6, label)[1] for label in range(3)))
    candidates = [label for label in range(3) if accuracy(alpha / 6, label)[0] <= found.worst.high + 1e-9]
    assert list(found.possibly) == candidates
    # New images: binomial bounds at 4/5 of the level around those at 1/5.
    sampling, binomial = SAMPLING_SHARE * alpha, (1 - SAMPLING_SHARE) * alpha
    least, most = by_hand(survivors, success, None, sampling)
    assert found.overall.new_low == pytest.approx(float(clopper_pearson(1450 - most, 1800, binomial).low))
    assert found.overall.new_high == pytest.approx(float(clopper_pearson(1450 - least, 1800, binomial).high))
    robust = [
        np.array([(survivors.label == unit).sum() - by_hand(survivors, success, unit, level)[end] for unit in range(3)])
        for end, level in ((1, sampling / 2), (0, sampling / 6))
    ]
    ends = [lowest_interval(ClassCounts(survivors.images, correct), binomial) for correct in robust]
    assert (found.worst.new_low, found.worst.new_high) == pytest.approx((ends[0][0], ends[1][1]))


ONE, TRUE, FALSE = np.zeros(1, dtype=np.int64), np.ones(2, dtype=np.bool_), np.zeros(1, dtype=np.bool_)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: next_sample(Survivors(ONE + 3, ONE, FALSE), ONE, 1.0), r"settle = 1\.0: must be a number above 0 and"),
        (lambda: Survivors(ONE + 1, np.zeros(2, dtype=np.int64), TRUE), "class 0: 2 survivors of 1 images"),
        (lambda: Survivors(ONE, ONE[:0], FALSE[:0]), "no class has an image"),
        (lambda: Survivors(ONE + 1, ONE, TRUE), "expected one value for each of the 1 survivors"),
    ],
)
def test_invalid_values(call: Callable[[], object], message: str) -> None:
    check_refused(message, call)
