"""Gaffke's bounds: Clopper and Pearson's for two values, the Dirichlet distribution, and the level of skewed values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from classwise.stats.gaffke import lower_bounds, score_below
from classwise.stats.intervals import clopper_pearson


@pytest.mark.parametrize("error", [0.4, 0.025, 0.00025])
@pytest.mark.parametrize("images", [1, 2, 10, 100])
def test_bounds_of_two_values_are_those_of_clopper_and_pearson(images: int, error: float) -> None:
    right = np.arange(images + 1)
    found = lower_bounds(np.array([0.0, 1.0]), np.stack([images - right, right], axis=1).astype(float), error)
    expected = clopper_pearson(right, np.full(images + 1, images), 2 * error).low
    np.testing.assert_allclose(found, expected, atol=2.5e-3)
    if error < 0.1:
        assert (found <= expected + 1e-5).all()  # the approximation widens


def test_bounds_are_quantiles_of_means_with_dirichlet_weights() -> None:
    values, counts = np.array([-1, -0.5, 0, 1]), np.array([[3.0, 5, 20, 2]])
    weights = np.random.default_rng(0).dirichlet(counts[0] + [1, 0, 0, 0], 400_000)
    for error in (0.2, 0.025, 0.002):
        expected = np.quantile(weights @ values, error)
        assert lower_bounds(values, counts, error)[0] == pytest.approx(expected, abs=3e-3)


@given(st.lists(st.integers(0, 6), min_size=4, max_size=4), st.floats(0.0001, 0.3))
def test_bounds_are_at_most_the_means_and_invert_the_score(cells: list[int], error: float) -> None:
    values, counts = np.array([-1.0, -0.25, 0.5, 1.0]), np.array([cells], dtype=float)
    (bound,) = lower_bounds(values, counts, error)
    if not sum(cells):
        assert np.isnan(bound)
        return
    mean = counts[0] @ values / sum(cells)
    assert -1 <= bound <= mean
    if -1 < bound < mean:
        assert lower_bounds(values, counts, error / 2)[0] <= bound
        assert stats.norm.cdf(score_below(values, counts, np.array([bound])))[0] == pytest.approx(error, rel=1e-5)


def test_skewed_differences_keep_a_small_level() -> None:
    """Rare losses of 1 and frequent gains of 0.05, of mean 0: two moments fail in 0.5 to 1 % at a level of 0.26 %."""
    rng, level, samples = np.random.default_rng(1), 0.00256, 40_000
    gains, losses = rng.binomial(10, 0.05, (samples, 100)), rng.random((samples, 100)) < 0.05
    whole = gains - 10 * losses
    counts = np.stack([(whole == value).sum(axis=1) for value in range(-10, 11)], axis=1).astype(float)
    scores = score_below(np.arange(-10, 11) / 10, counts, np.zeros(samples))
    bound_above = scores < -2.7995  # the normal quantile of the level
    assert bound_above.mean() <= level + 4 * np.sqrt(level / samples)
