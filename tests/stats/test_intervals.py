from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import (
    Interval,
    class_intervals,
    clopper_pearson,
    lowest_interval,
    proportion_interval,
    sidak,
    wilson,
)
from tests.refusals import check_refused
from tests.stats.strategies import some_counts

numbers = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
levels = st.sampled_from([0.01, 0.05, 0.2])


@pytest.mark.parametrize(("interval", "method"), [(wilson, "wilson"), (clopper_pearson, "exact")])
@given(numbers, levels)
def test_the_intervals_are_scipys(
    interval: Callable[..., Interval], method: Literal["wilson", "exact"], kn: tuple[int, int], alpha: float
) -> None:
    expected = stats.binomtest(*kn).proportion_ci(1 - alpha, method=method)
    np.testing.assert_allclose(interval(*kn, alpha), expected, atol=1e-9)


def test_wilson_closed_forms() -> None:
    """Wilson's upper end for 0 of n is z^2 / (n + z^2); 253 of 1000 computed by hand."""
    z2 = 1.959963984540054**2
    assert wilson(0, 50).high == pytest.approx(z2 / (50 + z2))
    assert wilson(50, 50).low == pytest.approx(50 / (50 + z2))
    np.testing.assert_allclose(wilson(253, 1000), (0.22704, 0.28086), atol=1e-5)


def test_clopper_pearson_closed_forms() -> None:
    assert clopper_pearson(0, 20).high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert clopper_pearson(20, 20).low == pytest.approx(0.025 ** (1 / 20))


def test_the_ends_are_exact() -> None:
    for interval in (wilson, clopper_pearson):
        low, high = interval(np.array([0, 7]), np.array([7, 7]))
        assert (low[0], high[1]) == (0, 1)


def _coverage(low: np.ndarray, high: np.ndarray, n: int, p: np.ndarray) -> np.ndarray:
    """Exact coverage at each true proportion: the total probability of the outcomes whose interval contains it."""
    contains = (low[:, None] <= p) & (p <= high[:, None])
    coverage: np.ndarray = (stats.binom.pmf(np.arange(n + 1)[:, None], n, p) * contains).sum(axis=0)
    return coverage


@pytest.mark.parametrize("n", [5, 30, 200])
def test_clopper_pearson_always_covers(n: int) -> None:
    p = np.linspace(0.001, 0.999, 199)
    assert _coverage(*clopper_pearson(np.arange(n + 1), np.full(n + 1, n)), n, p).min() >= 0.95


@pytest.mark.parametrize("n", [1, 10, 100, 201, 1896])
def test_the_interval_of_a_proportion_covers_and_increases(n: int) -> None:
    """The coverage is least at the ends of the intervals. Wilson's alone covers 79 % of one image."""
    correct = np.arange(n + 1)
    low, high = (np.asarray(end) for end in proportion_interval(correct, np.full(n + 1, n)))
    ends = np.concatenate([low[1:] * (1 - 1e-12), high[:-1] * (1 + 1e-12)])
    first, last = np.searchsorted(high, ends), np.searchsorted(low, ends, side="right") - 1
    coverage = stats.binom.cdf(last, n, ends) - stats.binom.cdf(first - 1, n, ends)
    assert float(np.min(coverage)) >= 0.94
    for alpha in (1e-6, 0.001, 0.01, 0.1, 0.3):
        for end in proportion_interval(correct, np.full(n + 1, n), alpha):
            assert (np.diff(end) > 0).all(), alpha


def test_simultaneous_intervals_cover_all_classes_at_once() -> None:
    """Classes are independent, so the joint coverage is the product of the exact coverages."""
    n, true = 60, np.array([0.05, 0.3, 0.5, 0.8, 0.97])
    low, high = clopper_pearson(np.arange(n + 1), np.full(n + 1, n), sidak(0.05, len(true)))
    assert _coverage(low, high, n, true).prod() >= 0.95
    single = clopper_pearson(np.arange(n + 1), np.full(n + 1, n))
    assert _coverage(*single, n, true).prod() < 0.95
    counts = ClassCounts(np.full(5, n), np.array([3, 18, 30, 48, 58]))
    joint = class_intervals(counts, simultaneous=True)
    np.testing.assert_allclose(joint.low, low[counts.correct])
    np.testing.assert_allclose(joint.high, high[counts.correct])


def test_sidak_by_hand() -> None:
    assert sidak(0.05, 10) == pytest.approx(1 - 0.95**0.1)
    assert sidak(0.05, 1) == pytest.approx(0.05)


def test_small_classes_are_exact() -> None:
    """n p (1-p) is 50 for the first class, 49.3 for the second, 0 for the third."""
    counts = ClassCounts(np.array([200, 1000, 100, 0]), np.array([100, 52, 100, 0]))
    low, high = class_intervals(counts)
    np.testing.assert_allclose((low[0], high[0]), wilson(100, 200))
    np.testing.assert_allclose((low[1], high[1]), clopper_pearson(52, 1000))
    np.testing.assert_allclose((low[2], high[2]), clopper_pearson(100, 100))
    assert np.isnan([low[3], high[3]]).all()
    np.testing.assert_allclose(proportion_interval(100, 200, 0.005), clopper_pearson(100, 200, 0.005))


@given(some_counts(), st.integers(0, 10**6))
def test_intervals_contain_the_accuracy_and_follow_the_classes(counts: ClassCounts, seed: int) -> None:
    low, high = class_intervals(counts, simultaneous=True)
    there = counts.present
    assert (low[there] >= 0).all()
    assert (low[there] <= counts.accuracy[there] + 1e-12).all()
    assert (counts.accuracy[there] <= high[there] + 1e-12).all()
    assert (high[there] <= 1).all()
    assert np.isnan(low[~there]).all()
    order = np.random.default_rng(seed).permutation(counts.num_classes)
    moved = class_intervals(ClassCounts(counts.count[order], counts.correct[order]), simultaneous=True)
    np.testing.assert_array_equal(moved.low, low[order])
    np.testing.assert_array_equal(moved.high, high[order])


def test_absent_classes_do_not_widen_the_intervals() -> None:
    two = ClassCounts(np.array([100, 100]), np.array([50, 60]))
    three = ClassCounts(np.array([100, 100, 0]), np.array([50, 60, 0]))
    np.testing.assert_array_equal(
        class_intervals(three, simultaneous=True).low[:2], class_intervals(two, simultaneous=True).low
    )


@pytest.mark.parametrize("number", [1, 2])
def test_the_interval_of_the_lowest_accuracies_by_hand(number: int) -> None:
    counts = ClassCounts(np.array([400, 50, 0, 400, 30]), np.array([110, 14, 0, 200, 20]))
    present = counts.present
    rows = list(zip(counts.correct[present].tolist(), counts.count[present].tolist(), strict=True))
    lower = [stats.beta.ppf(1 - 0.975 ** (1 / number), k, n - k + 1) for k, n in rows]
    upper = [stats.beta.ppf(0.975 ** (1 / 4), k + 1, n - k) for k, n in rows]
    expected = sorted(lower)[:number], sorted(upper)[:number]
    assert lowest_interval(counts, number=number) == pytest.approx(tuple(map(np.mean, expected)), abs=1e-12)


@pytest.mark.parametrize("number", [1, 2])
def test_each_end_of_the_lowest_accuracies_fails_with_half_the_level(number: int) -> None:
    """Exact probabilities over all outcomes."""
    images, alpha = np.array([9, 14, 11]), 0.2
    outcomes = np.array([*itertools.product(*(range(n + 1) for n in images))])
    intervals = [lowest_interval(ClassCounts(images, correct), alpha, number=number) for correct in outcomes]
    low, high = np.array(intervals).T
    for true in (
        (0.5, 0.5, 0.5),
        (0.1, 0.1, 0.6),
        (0.02, 0.03, 0.04),
        (0.4, 0.7, 0.95),
        (0.0, 0.5, 0.5),
        (0.9, 0.93, 1.0),
    ):
        truth = float(np.mean(sorted(true)[:number]))
        probability = np.prod(stats.binom.pmf(outcomes, images, true), axis=1)
        assert probability.sum() == pytest.approx(1)
        assert probability[low > truth + 1e-12].sum() <= alpha / 2
        assert probability[high < truth - 1e-12].sum() <= alpha / 2


def test_an_interval_of_the_lowest_accuracy_needs_images() -> None:
    check_refused("no class has an image", lowest_interval, ClassCounts.zeros(3))


@given(some_counts(), st.integers(0, 7), st.floats(1e-6, 0.3))
def test_the_interval_of_the_lowest_accuracy_is_monotone(counts: ClassCounts, label: int, alpha: float) -> None:
    low, high = lowest_interval(counts, alpha)
    value = float(np.nanmin(counts.accuracy))
    assert 0 <= low <= value + 1e-12
    assert value - 1e-12 <= high <= 1
    wider = lowest_interval(counts, alpha / 2)
    assert wider[0] <= low
    assert wider[1] >= high
    # A further class that is never wrong leaves the lower end unless it has few images, and cannot lower the upper end.
    images = np.append(counts.count, 10**6)
    more = lowest_interval(ClassCounts(images, np.append(counts.correct, 10**6)), alpha)
    assert more[0] == low
    assert more[1] >= high - 1e-12
    correct = counts.correct.copy()
    correct[label % counts.num_classes] = counts.count[label % counts.num_classes]
    better = lowest_interval(ClassCounts(counts.count, correct), alpha)
    assert better[0] >= low - 1e-12
    assert better[1] >= high - 1e-12


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 95])
@pytest.mark.parametrize("function", [partial(wilson, 1, 2), partial(clopper_pearson, 1, 2), partial(sidak, tests=3)])
def test_alpha_out_of_range(function: Callable[..., object], alpha: float) -> None:
    check_refused("alpha", function, alpha=alpha)
