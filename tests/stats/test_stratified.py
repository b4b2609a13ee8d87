"""Intervals of weighted sums of class means: equal to exact intervals where there are any, and valid for few images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from classwise.stats.counts import ClassCounts
from classwise.stats.crossed import upper_bound
from classwise.stats.stratified import class_mean, p_value, sum_of_class_means, weighted_mean
from tests.refusals import check_refused
from tests.stats.strategies import some_counts

LEVELS = (0.05, 0.001)


@pytest.mark.parametrize("level", LEVELS)
@given(st.integers(1, 50).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_one_class_has_the_interval_of_clopper_and_pearson(level: float, size: tuple[int, int]) -> None:
    images, correct = size
    found = class_mean(ClassCounts(np.array([images]), np.array([correct])), level)
    exact = stats.binomtest(correct, images).proportion_ci(1 - level, "exact")
    assert found[1:] == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize("level", LEVELS)
@given(st.lists(st.booleans(), min_size=2, max_size=40))
def test_classes_of_one_image_have_the_interval_of_all_images(level: float, right: list[bool]) -> None:
    found = class_mean(ClassCounts(np.ones(len(right), np.int64), np.array(right, np.int64)), level)
    exact = stats.binomtest(sum(right), len(right)).proportion_ci(1 - level, "exact")
    assert found[1:] == pytest.approx((exact.low, exact.high), abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_one_class_of_real_values_has_gaffkes_bound(values: list[float]) -> None:
    sample = np.array(values)
    found = sum_of_class_means(sample, np.zeros(len(sample), np.int64), [0.0], [1.0])
    bound = float(upper_bound(len(sample), sample.mean(), (sample**2).mean(), 0.025).bound)
    assert found.high == pytest.approx(max(bound, sample.mean()), abs=1e-6)


@given(some_counts())
def test_the_interval_contains_its_value_and_widens_with_the_level(counts: ClassCounts) -> None:
    wide, narrow = (class_mean(counts, level) for level in (0.001, 0.05))
    assert wide.value == pytest.approx(np.nanmean(counts.accuracy))
    assert 0 <= wide.low <= narrow.low + 1e-12
    assert narrow.low <= narrow.value + 1e-12
    assert narrow.value <= narrow.high + 1e-12
    assert narrow.high <= wide.high + 1e-12
    assert wide.high <= 1 + 1e-12


@given(some_counts())
def test_exchanging_correct_and_wrong_mirrors_the_interval(counts: ClassCounts) -> None:
    found, mirrored = class_mean(counts), class_mean(ClassCounts(counts.count, counts.wrong))
    assert (1 - found.value, 1 - found.high, 1 - found.low) == pytest.approx(mirrored, abs=1e-9)


def test_a_negative_weight_mirrors_the_values_of_a_class() -> None:
    right, index = np.array([1, 1, 0, 1, 0, 0, 0, 1]), np.repeat([0, 1], 4)
    first = sum_of_class_means(right, index, [0, 0], [1, 1])
    second = sum_of_class_means(np.where(index, -right, right), index, [0, -1], [1, 0])
    wrong_in_second = sum_of_class_means(np.where(index, 1 - right, right), index, [0, 0], [1, 1])
    assert second == pytest.approx([end - 1 for end in wrong_in_second])
    assert first.value - second.value == pytest.approx(2 * right[4:].mean())


def test_many_images_have_the_normal_interval_of_a_stratified_mean() -> None:
    counts = ClassCounts(np.array([4000, 5000, 6000]), np.array([1000, 2500, 4500]))
    error = np.sqrt((counts.accuracy * (1 - counts.accuracy) / counts.count).sum()) / 3
    found = class_mean(counts)
    assert (found.high - found.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.01)


def test_constant_classes_have_no_width() -> None:
    assert sum_of_class_means([0.5], np.array([0]), [0.5, 2.0], [0.5, 2.0]) == (2.5, 2.5, 2.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sum_of_class_means([0.5], np.array([0]), [0, 0], [1, 1]), "class 1 has no image"),
        (lambda: sum_of_class_means([0.5, 1.5], np.array([0, 0]), [0], [1]), "value 1.5: outside the range of its cla"),
        (lambda: weighted_mean([1], [1.0], [1.0], [0.0]), "none is positive"),
    ],
)
def test_invalid_arguments(call: Callable[[], object], message: str) -> None:
    check_refused(message, call)


@pytest.mark.parametrize("correct", [0, 7, 10, 25, 50])
def test_the_p_value_is_the_level_whose_interval_ends_at_the_hypothesis(correct: int) -> None:
    counts = ClassCounts(np.array([50]), np.array([correct]))
    p = p_value(lambda level: class_mean(counts, level), 0.5)
    one_sided = min(stats.binom.cdf(correct, 50, 0.5), stats.binom.sf(correct - 1, 50, 0.5))
    assert p == pytest.approx(min(2 * one_sided, 1), rel=1e-6)
