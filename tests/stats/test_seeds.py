from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from classwise.errors import UserError
from classwise.stats.intervals import wilson
from classwise.stats.seeds import mean_over_seeds, worst_over_seeds


def test_two_way_table_by_hand() -> None:
    """Two seeds, four images: rows 1 1 1 0 and 1 0 1 0, mean 5/8.

    SS_seed = 4 * 2 * (1/8)^2 = 1/8; SS_image = 2 * (2 (3/8)^2 + (1/8)^2 + (5/8)^2) = 11/8; SS_total = 15/8, so
    SS_res = 3/8. MS: 1/8, 11/24, 1/8. Var = (1/8 + 11/24 - 1/8) / 8 = 11/192.
    """
    found = mean_over_seeds([[1, 1, 1, 0], [1, 0, 1, 0]], np.zeros(4, int), 1)
    assert found.mean == pytest.approx(5 / 8)
    assert found.variance == pytest.approx(11 / 192)
    spread = (1 / 8) ** 2 + (11 / 24) ** 2 / 3 + (1 / 8) ** 2 / 3
    assert found.degrees == pytest.approx((11 / 24) ** 2 / spread)


def test_the_variance_has_a_floor() -> None:
    """Each image right once and each seed right on half: all the variance is residual, MS_res = 1, S n = 4."""
    found = mean_over_seeds([[1, 0], [0, 1]], np.zeros(2, int), 1)
    assert found.variance == pytest.approx(1 / 4)
    assert found.degrees == 1


def test_equal_seeds_leave_the_variance_of_the_images() -> None:
    answers = np.random.default_rng(0).random(50) < 0.3
    found = mean_over_seeds(np.tile(answers, (4, 1)), np.zeros(50, int), 1)
    assert found.variance == pytest.approx(answers.var(ddof=1) / 50)


def test_equal_images_leave_the_variance_of_the_seeds() -> None:
    seeds = np.array([1, 0, 1, 1, 0])
    found = mean_over_seeds(np.tile(seeds[:, None], (1, 30)), np.zeros(30, int), 1)
    assert found.variance == pytest.approx(seeds.var(ddof=1) / 5)
    assert found.degrees == pytest.approx(4)


@given(st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_classes_are_apart(seeds: int, random: int) -> None:
    """A class in a table of many is what it is alone; absent classes are NaN."""
    rng = np.random.default_rng(random)
    labels = rng.integers(0, 3, 40)
    right = rng.random((seeds, 40)) < np.array([0.1, 0.5, 1.0])[labels]
    whole = mean_over_seeds(right, labels, 4)
    for c in range(3):
        mine = labels == c
        if mine.any():
            alone = mean_over_seeds(right[:, mine], np.zeros(mine.sum(), int), 1)
            np.testing.assert_allclose(np.stack(alone)[:, 0], np.stack(whole)[:, c], rtol=1e-6, atol=1e-12)
    assert np.isnan((whole.mean[3], whole.low[3], whole.high[3])).all()
    with_images = whole.low[~np.isnan(whole.variance)], whole.high[~np.isnan(whole.variance)]
    assert (with_images[0] >= 0).all()
    assert (with_images[1] <= 1).all()


def test_all_right_is_not_certain() -> None:
    found = mean_over_seeds(np.ones((3, 40)), np.zeros(40, int), 1)
    t = stats.t.ppf(0.975, 39)
    assert found.variance == 0
    assert found.low == pytest.approx(40 / (40 + t**2))
    assert found.high == 1


def _simulate(rng: np.random.Generator, seeds: int, base: np.ndarray, spread: float, n: int) -> np.ndarray:
    """Normal seed and image effects on a probit scale, so that the true accuracy has a closed form."""
    image = rng.normal(0, 1, (1, len(base), n))
    seed = rng.normal(0, spread, (seeds, len(base), 1))
    noise = rng.normal(0, 1, (seeds, len(base), n))
    right: np.ndarray = (base[None, :, None] + image + seed + noise > 0).reshape(seeds, -1)
    return right


@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.05), (5, 0.3)])
def test_mean_interval_covers_new_seeds_and_images(seeds: int, spread: float) -> None:
    rng = np.random.default_rng(0)
    base = np.full(300, 0.5)
    truth = stats.norm.cdf(base / np.sqrt(2 + spread**2))
    # Every class is a repetition of the experiment.
    found = mean_over_seeds(_simulate(rng, seeds, base, spread, 80), np.repeat(np.arange(300), 80), 300)
    assert 0.91 <= np.mean((found.low <= truth) & (truth <= found.high)) <= 0.99


def test_worst_over_seeds_by_hand() -> None:
    """Class accuracies 0.5 and 0 for the first seed, 0.5 and 1 for the second: minima 0 and 0.5."""
    found = worst_over_seeds([[1, 0, 0, 0], [1, 0, 1, 1]], [0, 0, 1, 1], 3)
    assert found.value == 0.25
    assert 0 <= found.low < 0.25 < found.high <= 1


def test_worst_over_seeds_of_equal_seeds_is_binomial() -> None:
    """Equal seeds and one class leave the binomial bootstrap, whose percentiles are known."""
    answers = np.arange(200) < 60
    found = worst_over_seeds(np.tile(answers, (2, 1)), np.zeros(200, int), 1, resamples=4000)
    low, high = (float(stats.binom.ppf(tail, 200, 0.3)) / 200 for tail in (0.025, 0.975))
    reach = max(0.3 - low, high - 0.3) * np.sqrt(2)
    assert found.value == pytest.approx(0.3)
    assert found.high - found.value == pytest.approx(reach, abs=0.01)
    assert found.value - found.low == pytest.approx(reach, abs=0.01)


def test_worst_over_seeds_covers_at_ties() -> None:
    rng = np.random.default_rng(4)
    base, labels = np.zeros(4), np.repeat(np.arange(4), 80)
    true = stats.norm.cdf(rng.normal(0, 0.1, (20000, 4)) / np.sqrt(2)).min(axis=1).mean()
    held = []
    for _ in range(100):
        _, low, high = worst_over_seeds(_simulate(rng, 3, base, 0.1, 80), labels, 4, resamples=150)
        held.append(low <= true <= high)
    assert np.mean(held) >= 0.92


def test_worst_over_seeds_of_a_lost_class_is_not_certain() -> None:
    labels = np.repeat([0, 1], 50)
    found = worst_over_seeds(np.tile(labels == 0, (3, 1)), labels, 2)
    assert (found.value, found.low) == (0, 0)
    assert found.high == pytest.approx(float(wilson(0, 50).high))


def test_worst_over_seeds_is_seeded_and_ignores_the_order_of_images() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    right = rng.random((3, 60)) < 0.5
    order = rng.permutation(60)
    found = worst_over_seeds(right, labels, 3, resamples=200)
    assert worst_over_seeds(right[:, order], labels[order], 3, resamples=200) == found
    assert worst_over_seeds(right, labels, 3, resamples=200, seed=1) != found


@pytest.mark.parametrize("function", [mean_over_seeds, worst_over_seeds])
def test_mistakes_are_named(function: object) -> None:
    assert callable(function)
    with pytest.raises(UserError, match="two seeds or more"):
        function([[1, 0]], [0, 0], 1)
    with pytest.raises(UserError, match="two seeds or more"):
        function([1, 0], [0, 0], 1)
    with pytest.raises(UserError, match="each of the 3 labels"):
        function([[1, 0], [1, 0]], [0, 0, 0], 1)
    with pytest.raises(UserError, match="no images"):
        function(np.ones((2, 0)), np.zeros(0, int), 1)
    with pytest.raises(UserError, match="alpha"):
        function([[1, 0], [1, 0]], [0, 0], 1, 0)


def test_resamples_are_needed() -> None:
    with pytest.raises(UserError, match="resamples 0"):
        worst_over_seeds([[1, 0], [1, 0]], [0, 0], 1, resamples=0)


def test_degrees_of_freedom_have_a_floor() -> None:
    """Opposite answers, 8 and 2 of 10 right: MS_seed = 1.8, MS_image = 0, MS_res = 3.2/9; the formula gives 0.64."""
    first = np.arange(10) < 8
    found = mean_over_seeds([first, ~first], np.zeros(10, int), 1)
    assert found.variance == pytest.approx((1.8 - 3.2 / 9) / 20)
    assert found.degrees == 1


def test_worst_over_seeds_of_equal_images_is_the_seeds_alone() -> None:
    """Three seeds all right, one all wrong: the bootstrap is binomial(4, 3/4) / 4, its lower percentile 1/4."""
    found = worst_over_seeds(np.tile([[1], [0], [1], [1]], (1, 20)), np.zeros(20, int), 1)
    assert stats.binom.ppf(0.025, 4, 0.75) == 1
    assert found == pytest.approx((0.75, 0.75 - 0.5 * np.sqrt(4 / 3), 1))
