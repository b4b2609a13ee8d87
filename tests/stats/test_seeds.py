from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from classwise.stats.counts import ClassCounts
from classwise.stats.crossed import Crossed, added_by_runs
from classwise.stats.gaffke import lower_bounds
from classwise.stats.intervals import clopper_pearson, lowest_interval
from classwise.stats.seeds import (
    difference_over_seeds,
    mean_over_seeds,
    worst_difference_over_seeds,
    worst_over_seeds,
)
from tests.refusals import check_refused


def test_one_run_has_the_interval_of_clopper_and_pearson() -> None:
    """With one run the interval is for new images only."""
    labels = np.repeat([0, 1], [40, 7])
    right = np.r_[np.arange(40) < 13, np.ones(7, bool)]
    found = mean_over_seeds(right[None], labels, 3)
    low, high = clopper_pearson([13, 7], [40, 7])
    np.testing.assert_allclose(found.mean[:2], [13 / 40, 1])
    np.testing.assert_allclose(found.low[:2], low)
    np.testing.assert_allclose(found.high[:2], high)
    assert np.isnan(np.stack(found)[:, 2]).all()


def test_equal_runs_are_one_run() -> None:
    """An image counts once, however many runs see it."""
    right = np.random.default_rng(0).random(50) < 0.3
    one, four = (mean_over_seeds(np.tile(right, (runs, 1)), np.zeros(50, int), 1) for runs in (1, 4))
    np.testing.assert_allclose(np.stack(one), np.stack(four))


def test_equal_images_leave_student_s_interval_of_the_runs() -> None:
    """If a run is right on all images or on none, only the runs vary; the images add their reach in quadrature."""
    runs = np.array([1, 0, 1, 1, 0, 1, 1, 0])
    found = mean_over_seeds(np.tile(runs[:, None], (1, 100_000)), np.zeros(100_000, int), 1)
    expected = stats.ttest_1samp(runs, 0).confidence_interval()
    assert found.low <= expected.low + 1e-3
    assert found.high >= min(expected.high, 1) - 1e-3


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
    known = ~np.isnan(whole.mean)
    assert (whole.low[known] >= 0).all()
    assert (whole.high[known] <= 1).all()


def test_all_right_is_not_certain() -> None:
    found = mean_over_seeds(np.ones((3, 40)), np.zeros(40, int), 1)
    assert found.low == pytest.approx(float(clopper_pearson(40, 40).low))
    assert found.high == 1


def test_worst_over_seeds_by_hand() -> None:
    """Class accuracies 0.5 and 0 for the first seed, 0.5 and 1 for the second: minima 0 and 0.5."""
    found = worst_over_seeds([[1, 0, 0, 0], [1, 0, 1, 1]], [0, 0, 1, 1], 3)
    assert found.value == 0.25
    assert 0 <= found.low < 0.25 < found.high <= 1


def test_the_worst_class_of_one_run_has_the_interval_of_an_audit() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 90)
    right = rng.random((1, 90)) < 0.4
    found = worst_over_seeds(right, labels, 5)
    counts = ClassCounts.from_labels(labels, right[0], 5)
    assert found[1:3] == lowest_interval(counts)
    assert found.value == np.nanmin(counts.accuracy)
    assert found.narrower == "images"


@pytest.mark.parametrize("runs", [2, 3, 7])
def test_equal_runs_of_one_class_have_the_lower_end_of_one_run(runs: int) -> None:
    """Equal runs add no variance, and the least bound of one class is its own."""
    right = np.arange(200) < 60
    found = worst_over_seeds(np.tile(right, (runs, 1)), np.zeros(200, int), 1)
    assert found.value == pytest.approx(0.3)
    assert found.low == pytest.approx(float(clopper_pearson(60, 200).low))
    assert found.high == pytest.approx(float(clopper_pearson(60, 200).high), abs=0.005)


def test_worst_over_seeds_of_a_class_at_zero_is_not_certain() -> None:
    labels = np.repeat([0, 1], 50)
    found = worst_over_seeds(np.tile(labels == 0, (3, 1)), labels, 2)
    assert (found.value, found.low) == (0, 0)
    assert found.high == pytest.approx(float(clopper_pearson(0, 50).high))


def test_worst_over_seeds_is_seeded_and_ignores_the_order_of_images() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    right = rng.random((3, 60)) < 0.5
    order = rng.permutation(60)
    found = worst_over_seeds(right, labels, 3)
    assert worst_over_seeds(right[:, order], labels[order], 3) == found
    assert worst_over_seeds(right, labels, 3, seed=1) != found


def test_the_upper_end_varies_little_with_the_halves() -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(10), 100)
    right = rng.random((3, 1000)) < 0.3
    found = [worst_over_seeds(right, labels, 10, seed=seed) for seed in range(8)]
    assert {interval.low for interval in found} == {found[0].low}
    assert np.ptp([interval.high for interval in found]) < 0.06 * (found[0].high - found[0].low)


@given(
    st.integers(1, 4).flatmap(
        lambda runs: st.lists(
            st.tuples(st.integers(0, 4), st.lists(st.booleans(), min_size=runs, max_size=runs)), min_size=1, max_size=30
        )
    )
)
def test_worst_over_seeds_encloses_its_value(images: list[tuple[int, list[bool]]]) -> None:
    """Any classes, images and runs, also classes with a single image."""
    labels = [label for label, _ in images]
    right = np.array([correct for _, correct in images]).T
    found = worst_over_seeds(right, labels, 6)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.value == pytest.approx(
        np.mean([min(run[np.array(labels) == label].mean() for label in set(labels)) for run in right])
    )
    # Seeing every image twice in the same runs leaves the value.
    assert worst_over_seeds(np.tile(right, 2), labels * 2, 6).value == pytest.approx(found.value)


def test_classes_with_one_image_give_no_upper_end() -> None:
    assert worst_over_seeds(np.zeros((3, 4)), np.arange(4), 4)[1:3] == (0, 1)


def test_what_narrows_the_interval() -> None:
    labels = np.zeros(4000, int)
    rng = np.random.default_rng(3)
    alike, differing = ((rng.random((3, 4000)) < level) for level in (0.5, np.array([[0.3], [0.5], [0.7]])))
    assert worst_over_seeds(alike[:, :20], labels[:20], 1).narrower == "images"
    assert worst_over_seeds(differing, labels, 1).narrower == "runs"
    assert worst_difference_over_seeds(differing, alike, labels, 1).narrower == "runs"


@given(st.booleans(), st.integers(2, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_ends_add_the_reaches_of_images_and_of_runs(paired: bool, seeds: int, others: int, random: int) -> None:
    """The reach of Gaffke's bound of the differences of the images, and what new runs add, in quadrature."""
    rng = np.random.default_rng(random)
    labels, others = np.arange(24) % 2, seeds if paired else others
    first, second = (rng.random((runs, 24)) < rng.uniform(0.2, 0.8, (runs, 1)) for runs in (seeds, others))
    found = difference_over_seeds(first, second, labels, 2, paired=paired)
    level = 1 - np.sqrt(0.95)  # Sidak's for two classes
    for label in range(2):
        one, two = first[:, labels == label].astype(float), second[:, labels == label].astype(float)
        values = one.mean(axis=0) - two.mean(axis=0)
        tables = [Crossed.of(runs, np.zeros(12, int), 1) for runs in ([one - two] if paired else [one, two])]
        tables = [table for table in tables if table.runs > 1]
        over_runs, noise = ([getattr(table, key)[0] for table in tables] for key in ("over_runs", "noise"))
        runs = [table.runs for table in tables]
        added = added_by_runs(values.var() / 12, over_runs, noise, runs, level, simultaneous=True)
        grid, counts = np.unique(np.r_[-1, values.round(12)], return_counts=True)
        counts[0] -= 1
        (bound,) = lower_bounds(grid, counts[None].astype(float), level / 2)
        assert found.difference[label] == pytest.approx(values.mean())
        expected = values.mean() - np.sqrt((values.mean() - bound) ** 2 + added)
        assert found.low[label] == pytest.approx(max(expected, -1), abs=1e-6)
    np.testing.assert_allclose(found.adjusted, 1 - (1 - found.p_value) ** 2)
    exchanged = difference_over_seeds(second, first, labels, 2, paired=paired)
    np.testing.assert_allclose(exchanged.p_value, found.p_value, rtol=1e-6)
    np.testing.assert_allclose(exchanged.low, -found.high, atol=1e-7)


def test_images_that_decide_leave_the_bound_of_one_run() -> None:
    """If runs do not vary and one method is always right, the interval is Clopper and Pearson's of the other."""
    second = np.arange(50) < 38
    found = difference_over_seeds(np.ones((3, 50)), np.tile(second, (3, 1)), np.zeros(50, int), 1, paired=False)
    low, high = clopper_pearson(38, 50)
    assert found.high == pytest.approx(1 - float(low), abs=2e-3)
    assert found.low == pytest.approx(1 - float(high), abs=0.05)  # differences of -1 are possible, too
    assert found.low < 1 - high


def test_equal_images_leave_the_variance_of_the_paired_seeds() -> None:
    first, second = np.array([1, 0, 1, 1, 0]), np.array([0, 0, 1, 0, 1])
    runs_a, runs_b = (np.tile(seeds[:, None], (1, 10_000)) for seeds in (first, second))
    found = difference_over_seeds(runs_a, runs_b, np.zeros(10_000, int), 1, paired=True)
    expected = stats.ttest_rel(first, second)
    assert found.p_value == pytest.approx(expected.pvalue, abs=1e-4)
    interval = expected.confidence_interval()
    assert found.low == pytest.approx(interval.low, abs=1e-4)
    assert found.high == pytest.approx(min(interval.high, 1), abs=1e-4)


@pytest.mark.parametrize("paired", [True, False])
def test_constant_differences_are_not_certain(paired: bool) -> None:
    labels = np.repeat([0, 1], 12)
    first = np.tile(labels == 0, (3, 1))
    found = difference_over_seeds(first, np.zeros_like(first), labels, 3, paired=paired)
    tail = (1 - np.sqrt(0.95)) / 2
    # All twelve differences are 1: one end is Clopper and Pearson's of the range -1 .. 1
    assert found.low[0] == pytest.approx(2 * tail ** (1 / 12) - 1, abs=0.01)
    assert (found.high[0], found.p_value[1]) == (1, 1)
    assert found.p_value[0] == pytest.approx(2 * 0.5**12, rel=0.1)
    assert -found.low[1] == pytest.approx(found.high[1], abs=1e-7)
    assert np.isnan([field[2] for field in found]).all()
    worst = worst_difference_over_seeds(first, ~first, labels, 2, paired=paired)
    assert worst.value == 0
    assert -worst.low == pytest.approx(worst.high)
    assert worst.high > 0.1


@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 4), st.booleans(), st.integers(0, 2**32 - 1))
def test_intervals_and_p_values_agree(seeds: int, others: int, classes: int, paired: bool, random: int) -> None:
    """The interval of a class excludes 0 exactly if its adjusted p-value is below alpha, at any level."""
    rng = np.random.default_rng(random)
    labels = rng.integers(0, classes, 40)
    alpha = float(rng.choice([0.01, 0.05, 0.3, 0.8]))
    first = rng.random((others if paired else seeds, 40)) < rng.uniform(0, 1, (1, 40))
    second = rng.random((others, 40)) < rng.uniform(0, 1, (1, 40)) * rng.integers(0, 2)
    found = difference_over_seeds(first, second, labels, classes + 1, alpha, paired=paired)
    excluded = (found.low > 0) | (found.high < 0)
    known = ~np.isnan(found.adjusted)
    assert np.array_equal(excluded[known], found.adjusted[known] < alpha)


def test_worst_difference_by_hand() -> None:
    runs = [[1, 0, 0, 0], [1, 0, 1, 1]], [[1, 1, 1, 0], [1, 1, 1, 0]]
    assert worst_difference_over_seeds(*runs, [0, 0, 1, 1], 3).value == 0.25 - 0.5


@given(st.integers(1, 3), st.integers(2, 3), st.integers(0, 2**32 - 1))
def test_a_worst_difference_is_antisymmetric_and_encloses_its_value(seeds: int, others: int, random: int) -> None:
    rng = np.random.default_rng(random)
    labels = rng.integers(0, 3, 40)
    first, second = rng.random((seeds, 40)) < 0.5, rng.random((others, 40)) < rng.uniform(0, 1, (others, 1))
    found = worst_difference_over_seeds(first, second, labels, 4)
    exchanged = worst_difference_over_seeds(second, first, labels, 4)
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert exchanged.value == pytest.approx(-found.value)
    assert (exchanged.low, exchanged.high) == pytest.approx((-found.high, -found.low))


def test_equal_runs_of_both_methods_show_no_variance() -> None:
    """Two methods whose runs have equal predictions: only the possible value -1 or 1 is left."""
    for images in range(2, 60):
        runs = np.tile(np.random.default_rng(images).random(images) < 0.5, (3, 1))
        found = difference_over_seeds(runs, runs[:2], np.zeros(images, int), 1, paired=False)
        assert found.high == pytest.approx(1 - 0.025 ** (1 / images), abs=3e-3)
        assert found.low == pytest.approx(-found.high, abs=1e-7)
        assert found.p_value == 1


def test_one_low_accuracy_has_a_long_upper_side() -> None:
    """Runs of about 3 %: on the logit scale their spread does not shrink with the mean."""
    right = np.arange(1000) < np.array([[12], [30], [48]])
    found = mean_over_seeds(right, np.zeros(1000, int), 1)
    t = stats.t.isf(0.025, 2) * np.std([0.012, 0.03, 0.048], ddof=1) / np.sqrt(3)
    assert float(found.high[0]) - 0.03 > 1.5 * t


@pytest.mark.parametrize("function", [mean_over_seeds, worst_over_seeds])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((0, 2)), [0, 0], 1), "at least one seed"),
        (([1, 0], [0, 0], 1), "at least one seed"),
        (([[1, 0], [1, 0]], [0, 0, 0], 1), "each of the 3 labels"),
        ((np.ones((2, 0)), np.zeros(0, int), 1), "no images"),
        (([[1, 0], [1, 0]], [0, 0], 1, 0), "alpha"),
    ],
)
def test_invalid_arguments(function: Callable[..., object], arguments: tuple[object, ...], message: str) -> None:
    check_refused(message, function, *arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: worst_over_seeds([[1, 0], [1, 0]], [0, 0], 1, halvings=0), "halvings = 0"),
        (lambda: difference_over_seeds([[1]], [[1]], [0], 1, paired=False), "one seed per method"),
        (lambda: difference_over_seeds([[1]], [[1], [1]], [0], 1, paired=True), "cannot be paired"),
        (lambda: worst_difference_over_seeds([[1]], [[1], [1]], [0], 1, paired=True), "cannot be paired"),
        (lambda: difference_over_seeds([[], []], [[], []], np.zeros(0, int), 1, paired=True), "no images"),
        (lambda: worst_difference_over_seeds([[], []], [[], []], np.zeros(0, int), 1, paired=True), "no images"),
    ],
)
def test_invalid_seeds(call: Callable[[], object], message: str) -> None:
    check_refused(message, call)
