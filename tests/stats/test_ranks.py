from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from classwise.stats.ranks import kendall, kendalls_w, pearson, spearman, spearman_matrix
from tests.refusals import check_refused

X = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
Y = [2.0, 7.0, 1.0, 8.0, 2.0, 8.0]  # with ties


def test_correlations_equal_those_of_scipy() -> None:
    assert pearson(X, Y).value == pytest.approx(stats.pearsonr(X, Y).statistic)
    assert spearman(X, Y).value == pytest.approx(stats.spearmanr(X, Y).statistic)
    assert kendall(X, Y).value == pytest.approx(stats.kendalltau(X, Y).statistic)
    stacked = np.random.default_rng(0).integers(0, 5, (2, 4, 9))
    for rows, found in zip(stacked, spearman_matrix(stacked), strict=True):
        assert found == pytest.approx(stats.spearmanr(rows, axis=1).statistic)
        assert found == pytest.approx(spearman_matrix(rows))


def test_the_permutation_p_is_exact_for_few_classes() -> None:
    value = abs(stats.spearmanr(X, Y).statistic)
    reached = [abs(stats.spearmanr(X, order).statistic) >= value - 1e-12 for order in itertools.permutations(Y)]
    assert spearman(X, Y).p_value == pytest.approx(np.mean(reached))


def test_many_classes_are_permuted_at_random() -> None:
    x = np.arange(12.0)
    assert spearman(x, x, permutations=999).p_value == pytest.approx(1 / 1000, rel=1e-9)
    noise = np.random.default_rng(1).normal(size=12)
    assert spearman(x, noise).p_value == pytest.approx(stats.spearmanr(x, noise).pvalue, abs=0.03)


def test_kendalls_w_by_the_definition_and_by_spearman() -> None:
    """W = ((m - 1) mean Spearman + 1) / m, also with ties if they are the same in all rows."""
    rows = np.array([[1, 2, 3, 4, 5], [2, 1, 4, 3, 5], [1, 3, 2, 5, 4]])
    sums = rows.sum(axis=0)
    plain = 12 * ((sums - sums.mean()) ** 2).sum() / (9 * (125 - 5))
    found = kendalls_w(rows)
    assert found.value == pytest.approx(plain)
    mean = spearman_matrix(rows)[np.triu_indices(3, k=1)].mean()
    assert found.value == pytest.approx((2 * mean + 1) / 3)
    tied = [[1, 1, 2, 3], [5, 5, 6, 9], [0, 0, 1, 2]]
    assert kendalls_w(tied).value == pytest.approx(1.0)


def test_the_p_of_w_enumerated() -> None:
    rows = np.array([[1, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3, 4]])
    value = kendalls_w(rows, permutations=10).value
    orders = list(itertools.permutations(range(4)))
    scatter = [
        ((sums - sums.mean()) ** 2).sum()
        for a, b in itertools.product(orders, orders)
        if (sums := rows[0] + rows[1][list(a)] + rows[2][list(b)]) is not None
    ]
    exact = np.mean(12 * np.array(scatter) / (9 * (64 - 4)) >= value - 1e-12)
    assert kendalls_w(rows, permutations=20000).p_value == pytest.approx(exact, abs=0.01)


def test_without_variation_there_is_no_correlation() -> None:
    assert np.isnan(spearman([1, 1, 1], [1, 2, 3]).value)
    assert np.isnan(kendalls_w([[1, 1, 1], [2, 2, 2]]).value)


def test_pairs_with_nan_are_excluded() -> None:
    assert spearman([1, 2, 3, np.nan], [1, 2, 3, 0]).value == pytest.approx(1)
    check_refused("2 pairs of finite values; at least 3", pearson, [1, np.nan, 3], [1, 2, 3])


@pytest.mark.parametrize("rows", [[[1, 2, 3]], [[1], [2]], [[1, np.nan], [2, 3]]])
def test_incomplete_rankings(rows: list[list[float]]) -> None:
    check_refused("two rows and two columns", kendalls_w, rows)
    check_refused(r"two dimensions, got shape \(2, 2, 3\)", kendalls_w, np.zeros((2, 2, 3)))
