from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import FloatArray
from classwise.stats.intervals import wilson
from classwise.stats.paired import holm, mcnemar, tango
from classwise.stats.seeds import (
    difference_over_seeds,
    mean_over_seeds,
    worst_difference_over_seeds,
    worst_over_seeds,
)


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
    """Each image is correct once and each seed on half: all variance is residual, MS_res = 1, S n = 4."""
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
def test_classes_are_independent(seeds: int, random: int) -> None:
    """The results of a class do not depend on the other classes; absent classes are NaN."""
    rng = np.random.default_rng(random)
    labels = rng.integers(0, 3, 40)
    right = rng.random((seeds, 40)) < np.array([0.1, 0.5, 1.0])[labels]
    whole = mean_over_seeds(right, labels, 4)
    for c in range(3):
        mine = labels == c
        if mine.any():
            single = mean_over_seeds(right[:, mine], np.zeros(mine.sum(), int), 1)
            np.testing.assert_allclose(np.stack(single)[:, 0], np.stack(whole)[:, c], rtol=1e-6, atol=1e-12)
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


def test_worst_over_seeds_of_a_class_at_zero_is_not_certain() -> None:
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
def test_invalid_arguments(function: object) -> None:
    assert callable(function)
    with pytest.raises(ClasswiseError, match="at least two seeds"):
        function([[1, 0]], [0, 0], 1)
    with pytest.raises(ClasswiseError, match="at least two seeds"):
        function([1, 0], [0, 0], 1)
    with pytest.raises(ClasswiseError, match="each of the 3 labels"):
        function([[1, 0], [1, 0]], [0, 0, 0], 1)
    with pytest.raises(ClasswiseError, match="no images"):
        function(np.ones((2, 0)), np.zeros(0, int), 1)
    with pytest.raises(ClasswiseError, match="alpha"):
        function([[1, 0], [1, 0]], [0, 0], 1, 0)


def test_zero_resamples() -> None:
    with pytest.raises(ClasswiseError, match="resamples 0"):
        worst_over_seeds([[1, 0], [1, 0]], [0, 0], 1, resamples=0)


def test_degrees_of_freedom_have_a_floor() -> None:
    """Opposite answers, 8 and 2 of 10 right: MS_seed = 1.8, MS_image = 0, MS_res = 3.2/9; the formula gives 0.64."""
    first = np.arange(10) < 8
    found = mean_over_seeds([first, ~first], np.zeros(10, int), 1)
    assert found.variance == pytest.approx((1.8 - 3.2 / 9) / 20)
    assert found.degrees == 1


def test_worst_over_seeds_of_equal_images_has_only_the_variance_of_the_seeds() -> None:
    """Three seeds all right, one all wrong: the bootstrap is binomial(4, 3/4) / 4, its lower percentile 1/4."""
    found = worst_over_seeds(np.tile([[1], [0], [1], [1]], (1, 20)), np.zeros(20, int), 1)
    assert stats.binom.ppf(0.025, 4, 0.75) == 1
    assert found == pytest.approx((0.75, 0.75 - 0.5 * np.sqrt(4 / 3), 1))


def _table(differences: FloatArray) -> tuple[float, float, float]:
    """MS_seed, MS_image and MS_res of (S, n) values, by sums over single cells."""
    seeds, images = differences.shape
    mean = differences.mean()
    rows, columns = differences.mean(axis=1), differences.mean(axis=0)
    residual = sum((differences[s, i] - rows[s] - columns[i] + mean) ** 2 for s in range(seeds) for i in range(images))
    return (
        images * sum((row - mean) ** 2 for row in rows) / (seeds - 1),
        seeds * sum((column - mean) ** 2 for column in columns) / (images - 1),
        residual / ((seeds - 1) * (images - 1)),
    )


@given(st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_paired_differences_are_a_two_way_table(seeds: int, random: int) -> None:
    rng = np.random.default_rng(random)
    labels = np.arange(24) % 2
    first, second = (rng.random((seeds, 24)) < rng.uniform(0.2, 0.8, (seeds, 1)) for _ in range(2))
    found = difference_over_seeds(first, second, labels, 2, paired=True)
    for label in range(2):
        cells = (first.astype(float) - second)[:, labels == label]
        n = cells.shape[1]
        by_seed, by_image, rest = _table(cells)
        variance = (max(by_image, rest) + max(by_seed - rest, 0)) / (seeds * n)
        share = min(by_seed / (seeds * n) / variance, 1) if variance else 0.0
        degrees = 1 / (share / (seeds - 1) + (1 - share) / (n - 1))
        assert found.difference[label] == pytest.approx(cells.mean())
        assert found.variance[label] == pytest.approx(variance)
        if variance:
            error = np.sqrt(variance)
            assert found.degrees[label] == pytest.approx(degrees)
            assert found.p_value[label] == pytest.approx(2 * stats.t.sf(abs(cells.mean()) / error, degrees))
            assert found.high[label] == pytest.approx(
                min(cells.mean() + stats.t.ppf(0.975, degrees) * error, 1), abs=1e-9
            )
    assert found.adjusted.tolist() == holm(found.p_value).tolist()


@pytest.mark.slow
@given(st.integers(1, 3), st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_unpaired_differences_add_the_seeds_of_each_method(seeds: int, other_seeds: int, random: int) -> None:
    rng = np.random.default_rng(random)
    first = rng.random((seeds, 20)) < 0.6
    second = rng.random((other_seeds, 20)) < rng.uniform(0.1, 0.9, (other_seeds, 1))
    found = difference_over_seeds(first, second, np.zeros(20, int), 1, paired=False)
    per_image = first.mean(axis=0) - second.mean(axis=0)
    images, noise, extra = per_image.var(ddof=1) / 20, 0.0, 0.0
    for runs in (first, second):
        if len(runs) > 1:
            by_seed, _, rest = _table(runs.astype(float))
            noise += rest / (len(runs) * 20)
            extra += max(by_seed - rest, 0) / (len(runs) * 20)
    assert found.difference == pytest.approx(first.mean() - second.mean())
    assert found.variance == pytest.approx(max(images, noise) + extra)
    exchanged = difference_over_seeds(second, first, np.zeros(20, int), 1, paired=False)
    assert exchanged.difference == pytest.approx(-found.difference)
    assert exchanged.p_value == pytest.approx(found.p_value)
    assert exchanged.low == pytest.approx(-found.high)


def test_equal_seeds_leave_the_paired_variance_of_the_images() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random(50) < 0.7, rng.random(50) < 0.4
    found = difference_over_seeds(np.tile(first, (3, 1)), np.tile(second, (3, 1)), np.zeros(50, int), 1, paired=True)
    assert found.variance == pytest.approx((first.astype(float) - second).var(ddof=1) / 50)
    assert found.degrees == pytest.approx(49)


def test_equal_images_leave_the_variance_of_the_paired_seeds() -> None:
    first, second = np.array([1, 0, 1, 1, 0]), np.array([0, 0, 1, 0, 1])
    runs_a, runs_b = (np.tile(seeds[:, None], (1, 30)) for seeds in (first, second))
    found = difference_over_seeds(runs_a, runs_b, np.zeros(30, int), 1, paired=True)
    expected = stats.ttest_rel(first, second)
    assert found.variance == pytest.approx((first - second).var(ddof=1) / 5)
    assert found.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(min(interval.high, 1))


@pytest.mark.parametrize("paired", [True, False])
def test_constant_differences_are_as_exact_as_one_pair(paired: bool) -> None:
    labels = np.repeat([0, 1], 12)
    first = np.tile(labels == 0, (3, 1))
    found = difference_over_seeds(first, np.zeros_like(first), labels, 3, paired=paired)
    assert found.p_value[:2].tolist() == [mcnemar(12, 0), 1.0]
    low, high = tango([12, 0], [0, 0], [12, 12])
    assert found.low[:2].tolist() == low.tolist()
    assert found.high[:2].tolist() == high.tolist()
    assert np.isnan([each[2] for each in found]).all()
    value, least, most = worst_difference_over_seeds(first, ~first, labels, 2, paired=paired)
    assert value == 0
    assert -least == pytest.approx(most)
    assert most > 0.1


def _equal_methods(
    rng: np.random.Generator, seeds: int, classes: int, n: int, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Two methods of equal accuracy on the same images, whose runs differ by ``spread`` on a probit scale."""
    image = rng.normal(0, 1, (1, classes, n))
    first, second = (
        (rng.normal(0, spread, (seeds, classes, 1)) + image + rng.normal(0, 1, (seeds, classes, n)) > 0.3)
        for _ in range(2)
    )
    return first.reshape(seeds, -1), second.reshape(seeds, -1)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.0), (3, 0.3), (5, 0.1), (5, 0.3)])
def test_the_false_positive_rate_for_equal_methods_is_nominal(seeds: int, spread: float, paired: bool) -> None:
    """Every class is a repetition. McNemar's test of the first seeds rejects far too often if runs differ."""
    rng = np.random.default_rng(1)
    first, second = _equal_methods(rng, seeds, 1000, 150, spread)
    labels = np.repeat(np.arange(1000), 150)
    found = difference_over_seeds(first, second, labels, 1000, paired=paired)
    assert 0.002 <= np.mean(found.p_value < 0.05) <= 0.07
    assert np.mean((found.low <= 0) & (found.high >= 0)) >= 0.93
    if spread == 0.3:
        up, down = (
            np.bincount(labels[mask], minlength=1000) for mask in (first[0] & ~second[0], ~first[0] & second[0])
        )
        assert np.mean(mcnemar(up, down) < 0.05) > 0.25


def test_the_variance_of_a_difference_is_that_of_repeated_experiments() -> None:
    """With components that are not truncated often, the mean estimate is the variance over repetitions."""
    rng = np.random.default_rng(2)
    first, second = _equal_methods(rng, 4, 3000, 60, 0.3)
    labels = np.repeat(np.arange(3000), 60)
    for paired in (True, False):
        found = difference_over_seeds(first, second, labels, 3000, paired=paired)
        assert found.variance.mean() == pytest.approx(found.difference.var(), rel=0.1)


def test_a_clear_difference_is_found() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.random((3, 300)) < 0.6, rng.random((3, 300)) < 0.4
    found = difference_over_seeds(first, second, np.zeros(300, int), 1, paired=True)
    assert found.p_value < 1e-3
    assert found.low > 0


def test_worst_difference_by_hand_and_over_equal_methods() -> None:
    value, _, _ = worst_difference_over_seeds(
        [[1, 0, 0, 0], [1, 0, 1, 1]], [[1, 1, 1, 0], [1, 1, 1, 0]], [0, 0, 1, 1], 3, paired=True, resamples=50
    )
    assert value == 0.25 - 0.5
    rng = np.random.default_rng(5)
    missed, firsts = 0, 0
    for repetition in range(60):
        first, second = _equal_methods(rng, 3, 4, 80, 0.4)
        labels = np.repeat(np.arange(4), 80)
        found = worst_difference_over_seeds(first, second, labels, 4, paired=True, resamples=150, seed=repetition)
        missed += not found.low <= 0 <= found.high
        single = [worst_over_seeds(np.tile(runs[0], (2, 1)), labels, 4, resamples=60).value for runs in (first, second)]
        firsts += abs(single[0] - single[1]) > 0.1  # single runs of equal methods often differ by this much
    assert missed <= 6
    assert firsts > 20


def test_invalid_differences() -> None:
    one, two = np.ones((1, 4)), np.ones((2, 4))
    labels = np.zeros(4, int)
    for function in (difference_over_seeds, worst_difference_over_seeds):
        with pytest.raises(ClasswiseError, match="one seed per method"):
            function(one, one, labels, 1, paired=False)
        with pytest.raises(ClasswiseError, match="cannot be paired"):
            function(one, two, labels, 1, paired=True)
        with pytest.raises(ClasswiseError, match="no images"):
            function(np.ones((2, 0)), np.ones((2, 0)), np.zeros(0, int), 1, paired=True)


def test_one_correct_prediction_has_the_same_interval_for_every_image() -> None:
    """MS_seed, MS_image and MS_res are equal, so the minimum applies for any rounding of the subtraction."""
    found = []
    for seed, image in itertools.product(range(3), range(6)):
        right = np.zeros((3, 6), bool)
        right[seed, image] = True
        found.append(mean_over_seeds(right, np.zeros(6, int), 1))
    assert {float(each.degrees[0]) for each in found} == {10.0}
    assert [float(each.high[0]) for each in found] == pytest.approx([float(found[0].high[0])] * len(found))


def test_equal_runs_of_both_methods_show_no_variance() -> None:
    """Two methods whose runs have equal predictions: Tango's interval without discordant images, for any rounding."""
    for images in range(2, 60):
        runs = np.tile(np.random.default_rng(images).random(images) < 0.5, (3, 1))
        found = difference_over_seeds(runs, runs[:2], np.zeros(images, int), 1, paired=False)
        ends = tango(np.zeros(1), np.zeros(1), np.array([images]))
        assert found.low == pytest.approx(ends.low)
        assert found.high == pytest.approx(ends.high)
        assert found.p_value == 1
