"""Intervals of correlations of class accuracies: exact values, limits, and coverage where resampling fails."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from classwise.stats.correlations import (
    SPLITS,
    Correlation,
    fixed_halves,
    half_means,
    pearson_correlation,
    random_halves,
    rank_correlation,
    split_counts,
)
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.metrics.variance import unbiased_variance


def counts(share: FloatArray, images: int) -> ClassCounts:
    return ClassCounts(np.full(len(share), images), np.rint(images * share).astype(np.int64))


def ranked(first: ClassCounts, second: FloatArray) -> Correlation:
    halves = np.stack([split_counts(first), fixed_halves(second)], axis=2)
    return rank_correlation(np.stack([first.accuracy, second]), halves)


SHARES = np.array([0.2, 0.5, 0.4, 0.9, 0.7, 0.3, 0.6])
NORMS = np.array([1.0, 1.4, 1.5, 2.0, 1.1, 1.3, 1.7])


def test_values_are_those_of_scipy() -> None:
    sums = counts(SHARES, 100)
    assert pearson_correlation(sums, NORMS).value == pytest.approx(stats.pearsonr(SHARES, NORMS).statistic)
    assert ranked(sums, NORMS).value == pytest.approx(stats.spearmanr(SHARES, NORMS).statistic)
    other = counts(SHARES[::-1], 50)
    assert pearson_correlation(sums, other).value == pytest.approx(stats.pearsonr(SHARES, SHARES[::-1]).statistic)


def test_the_correction_is_that_of_spearman_1904() -> None:
    """The product is not corrected, and the variance of the estimated vector is the unbiased one."""
    sums = counts(SHARES, 20)
    found = pearson_correlation(sums, NORMS)
    reliability = unbiased_variance(sums) / sums.accuracy.var()
    total = found.residual.value + (found.product**2 - found.error**2) / found.second.value
    disattenuated = found.product / math.sqrt(total * found.second.value)
    assert disattenuated == pytest.approx(found.value / math.sqrt(reliability))


def test_with_many_images_the_interval_shrinks_to_the_value() -> None:
    for found in (pearson_correlation(counts(SHARES, 10**7), NORMS), ranked(counts(SHARES, 10**7), NORMS)):
        end = found.estimate()
        assert end.high - end.low < 0.01 + 2 * found.step
        assert end.low <= end.value <= end.high


def test_the_interval_excludes_0_with_the_product() -> None:
    """For a known vector the product is a sum of independent terms with known variance."""
    found = pearson_correlation(counts(SHARES, 30), NORMS)
    p_value = 2 * stats.norm.sf(found.product / found.error)
    assert found.estimate(1.01 * p_value).low > 0
    assert found.estimate(0.99 * p_value).low < 0


def test_classes_that_may_be_tied_allow_every_correlation() -> None:
    tied = counts(np.array([0.5, 0.52, 0.48, 0.5, 0.51, 0.49, 0.5]), 100)
    for found in (pearson_correlation(tied, NORMS), ranked(tied, NORMS)):
        assert found.estimate()[1:] == (-1, 1)


def test_there_is_no_interval_for_few_classes_or_one_image() -> None:
    assert np.isnan(pearson_correlation(counts(SHARES[:2], 10), NORMS[:2]).estimate()[1:]).all()
    assert np.isnan(ranked(counts(SHARES[:5], 10), NORMS[:5]).estimate()[1:]).all()
    one = ClassCounts(np.array([1, 10, 10, 10, 10, 10, 10]), np.array([1, 5, 4, 9, 7, 3, 6]))
    for found in (pearson_correlation(one, NORMS), ranked(one, NORMS)):
        assert np.isfinite(found.value)
        assert np.isnan(found.estimate()[1:]).all()
    for found in (pearson_correlation(counts(SHARES, 10), np.ones(7)), ranked(counts(0 * SHARES, 10), NORMS)):
        assert np.isnan(found.estimate()).all()


@given(
    st.lists(st.tuples(st.integers(2, 9), st.integers(0, 9)), min_size=6, max_size=12),
    st.integers(0, 9),
    st.floats(1e-6, 0.9),
)
def test_the_interval_contains_its_value(cells: list[tuple[int, int]], seed: int, alpha: float) -> None:
    count, correct = np.array([(n, min(k, n)) for n, k in cells]).T
    sums, norms = ClassCounts(count, correct), np.random.default_rng(seed).normal(size=len(cells))
    for found in (pearson_correlation(sums, norms), ranked(sums, norms), pearson_correlation(sums, sums)):
        value, low, high = found.estimate(alpha)
        assert math.isnan(value) or -1 <= low <= value <= high <= 1
        assert math.isnan(value) or found.estimate(alpha / 2).low <= low


def test_halves_of_counts_and_of_images() -> None:
    sums = ClassCounts(np.array([10, 7, 2, 0]), np.array([10, 3, 1, 0]))
    halves = split_counts(sums)
    assert halves.shape == (SPLITS, 2, 4)
    assert (halves[:, :, 0] == 1).all()
    assert (halves[:, :, 2].sum(axis=1) == 1).all()
    assert np.isnan(halves[:, :, 3]).all()
    labels = np.array([0] * 10 + [2] * 7)
    second = random_halves(labels)
    assert (second[:, :10].sum(axis=1) == 5).all()
    assert set(second[:, 10:].sum(axis=1)) == {3, 4}
    values = np.random.default_rng(0).normal(size=(2, 17))
    means = half_means(values, labels, 3, second)
    assert np.isnan(means[..., 1]).all()
    assert means[5, 1, 0, 2] == pytest.approx(values[0, 10:][second[5, 10:]].mean())
    assert means[5, 0, 1, 0] == pytest.approx(values[1, :10][~second[5, :10]].mean())
    number = np.arange(17) + 100
    assert np.array_equal(random_halves(labels[:10], number[:10]), random_halves(labels, number)[:, :10])
