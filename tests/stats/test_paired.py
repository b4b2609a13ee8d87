from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from classwise.stats.counts import PairedCounts
from classwise.stats.paired import (
    class_differences,
    difference_of_minima,
    holm,
    mcnemar,
    overall_difference,
    paired_interval,
    paired_p_value,
    tango,
)
from classwise.stats.seeds import worst_difference_over_seeds
from tests.refusals import check_refused
from tests.stats.strategies import paired_counts

Z2 = 1.959963984540054**2
discordant = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 400)).map(
    lambda cells: (cells[0], cells[1], sum(cells) + 1)
)


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_the_binomial_test(b: int, c: int) -> None:
    expected = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected, abs=1e-12)


def test_mcnemar_by_hand() -> None:
    # 1 of 8 heads or fewer, both sides: 2 (1 + 8) / 256.
    np.testing.assert_allclose(mcnemar([1, 7, 0, 4], [7, 1, 0, 4]), [18 / 256, 18 / 256, 1, 1])


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm([0.04, 0.01, 0.03, np.nan]), [0.06, 0.03, 0.06, np.nan])
    np.testing.assert_allclose(holm([0.5, 0.6]), [1, 1])
    np.testing.assert_allclose(holm([np.nan]), [np.nan])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_the_raw_and_bonferroni(p: list[float]) -> None:
    raw, adjusted = np.array(p), holm(p)
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(1, len(p) * raw) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(raw)]) >= 0).all()


def test_tango_published() -> None:
    """Airway hyper-responsiveness before and after transplantation: Fagerland, Lydersen and Laake 2014, n = 21."""
    low, high = tango([1], [7], [21])
    assert (round(float(low[0]), 3), round(float(high[0]), 3)) == (-0.517, -0.026)


def test_tango_closed_forms() -> None:
    low, high = tango([0, 20], [0, 0], [20, 20])
    np.testing.assert_allclose(low, [-Z2 / (20 + Z2), (20 - Z2) / (20 + Z2)])
    np.testing.assert_allclose(high, [Z2 / (20 + Z2), 1])


@given(discordant)
def test_tango_ends_are_roots_of_the_quartic(cells: tuple[int, int, int]) -> None:
    """Yang, Sun and Hardin (2013) give the ends without iteration, as roots of a polynomial of degree four."""
    b, c, n = cells
    d, s = b - c, b + c
    quartic = [
        n**2 * (n / Z2 + 1) ** 2,
        -n * d * (n / Z2 + 1) * (4 * n / Z2 + 1),
        2 * n * d**2 * (3 * n / Z2 + 2) / Z2 - n**2 * (s / Z2 + 1),
        n * d * (2 * s / Z2 + 1) - d**3 * (4 * n / Z2 + 1) / Z2,
        d**2 * (d**2 / Z2 - s) / Z2,
    ]
    for end in tango([b], [c], [n]):
        terms = np.array(quartic) * end ** np.arange(4, -1, -1)
        assert abs(terms.sum()) <= 1e-7 * np.abs(terms).sum() + 1e-12


@pytest.mark.parametrize(("b", "c", "n"), [(12, 2, 50), (3, 9, 40), (1, 6, 30)])
def test_tango_inverts_the_score_test(b: int, c: int, n: int) -> None:
    """At each end the score statistic, with the cells fitted by numerical likelihood, is the normal quantile."""
    for end, sign in zip(tango([b], [c], [n]), (1, -1), strict=True):
        d = float(end[0])

        def loss(q: float, d: float = d) -> float:
            return -(b * math.log(q + d) + c * math.log(q) + (n - b - c) * math.log(1 - 2 * q - d))

        q = optimize.minimize_scalar(
            loss, bounds=(max(0, -d) + 1e-9, (1 - d) / 2 - 1e-9), method="bounded", options={"xatol": 1e-12}
        ).x
        statistic = (b - c - n * d) / math.sqrt(n * (2 * q + d - d * d))
        assert statistic == pytest.approx(sign * math.sqrt(Z2), abs=1e-4)


@given(discordant)
def test_tango_is_antisymmetric_and_contains_the_difference(cells: tuple[int, int, int]) -> None:
    b, c, n = cells
    low, high = tango([b], [c], [n])
    other_low, other_high = tango([c], [b], [n])
    assert (low, high) == (-other_high, -other_low)
    assert -1 <= low <= (b - c) / n <= high <= 1


def test_class_differences() -> None:
    pairs = PairedCounts(np.array([50, 0, 0]), np.array([12, 20, 0]), np.array([2, 0, 0]), np.array([36, 0, 0]))
    found = class_differences(pairs)
    np.testing.assert_allclose(found.difference, [0.1, 1, np.nan])
    score = 2 * stats.norm.sf(np.sqrt([100 / 14, 20]))
    np.testing.assert_allclose(found.p_value, [stats.binomtest(2, 14).pvalue, score[1], np.nan])
    np.testing.assert_allclose(found.adjusted, 1 - (1 - found.p_value) ** 2)
    np.testing.assert_allclose(found.low[:1], paired_interval([12], [2], [100], 1 - math.sqrt(0.95)).low)


@given(discordant, st.floats(0.001, 0.9))
def test_paired_intervals_and_p_values_agree(cells: tuple[int, int, int], alpha: float) -> None:
    """The interval excludes 0 exactly if the p-value is below alpha; it contains Tango's, the p-value is valid."""
    b, c, n = cells
    low, high = (float(end[0]) for end in paired_interval([b], [c], [n], alpha))
    p_value = float(paired_p_value([b], [c])[0])
    assert (low > 0 or high < 0) == (p_value < alpha)
    score = tango([b], [c], [n], alpha)
    assert low <= score.low[0] <= (b - c) / n <= score.high[0] <= high
    assert p_value >= mcnemar([b], [c])[0]


@given(st.lists(st.integers(0, 12), min_size=12, max_size=12), st.floats(0.001, 0.5))
def test_class_intervals_and_adjusted_p_values_agree(cells: list[int], alpha: float) -> None:
    pairs = PairedCounts(*np.array(cells).reshape(4, 3))
    found = class_differences(pairs, alpha)
    known = pairs.count > 0
    assert np.array_equal(((found.low > 0) | (found.high < 0))[known], (found.adjusted < alpha)[known])


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("level", [0.05, 0.005, 0.0005])
def test_the_paired_test_has_its_level(rate: float, level: float) -> None:
    """The exact probability that equal models differ: discordant images are binomial, and split evenly."""
    images = 200
    total = np.arange(images + 1)
    first = np.arange(images + 1)[:, None]
    rejected = (paired_p_value(np.minimum(first, total), np.maximum(total - first, 0)) < level) & (first <= total)
    chance = (rejected * stats.binom.pmf(first, total, 0.5)).sum(axis=0) @ stats.binom.pmf(total, images, rate)
    assert chance <= level


def test_overall_difference_pools_the_classes() -> None:
    pairs = PairedCounts(np.array([5, 7]), np.array([3, 1]), np.array([0, 2]), np.array([2, 0]))
    found = overall_difference(pairs)
    assert found.difference == pytest.approx(0.1)
    np.testing.assert_allclose((found.low, found.high), paired_interval([4], [2], [20]))
    np.testing.assert_allclose(found.p_value, found.adjusted)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(paired_counts())
def test_difference_of_minima_contains_its_value_and_is_antisymmetric(pairs: PairedCounts) -> None:
    found = difference_of_minima(pairs)
    assert found.value == pytest.approx(np.nanmin(pairs.first.accuracy) - np.nanmin(pairs.second.accuracy))
    assert -1 <= found.low <= found.value <= found.high <= 1
    exchanged = difference_of_minima(PairedCounts(pairs.both, pairs.only_second, pairs.only_first, pairs.neither))
    assert (exchanged.low, exchanged.high) == pytest.approx((-found.high, -found.low))


def test_difference_of_minima_is_that_over_runs_for_one_run_each() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    first, second = rng.random(200) < 0.5, rng.random(200) < 0.6
    found = difference_of_minima(PairedCounts.from_labels(labels, first, second, 5))
    assert found == worst_difference_over_seeds(first[None], second[None], labels, 5)[:3]


def test_difference_of_minima_needs_an_image() -> None:
    none = np.zeros(3, dtype=np.int64)
    check_refused("no class has an image", difference_of_minima, PairedCounts(none, none, none, none))


def test_difference_of_minima_uses_the_intervals_of_the_minima() -> None:
    """A class whose accuracy drops far without becoming the worst does not widen the interval."""
    worse_cats = PairedCounts(np.array([40, 300]), np.array([10, 400]), np.array([90, 0]), np.array([860, 300]))
    value, low, high = difference_of_minima(worse_cats)  # 5 % and 70 %, against 13 % and 30 %
    assert value == pytest.approx(-0.08)
    assert -0.12 < low < high < -0.04
    assert np.nanmax(class_differences(worse_cats).high) > 0.35


def test_difference_of_minima_of_similar_models_is_narrow() -> None:
    alike = PairedCounts(np.array([200, 800]), np.array([4, 4]), np.array([0, 0]), np.array([796, 196]))
    _, low, high = difference_of_minima(alike)
    assert -0.015 < low < high < 0.025
    equal = PairedCounts(*(cells * np.ones(10, dtype=np.int64) for cells in (500, 0, 0, 500)))
    _, low, high = difference_of_minima(equal)
    assert -0.01 < low < 0 < high < 0.01
