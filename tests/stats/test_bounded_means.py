"""Intervals for the mean of values in [0, 1]: exact for 0 and 1, and their coverage for fractions of passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classwise.core.errors import ClasswiseError
from classwise.stats.bounded_means import mean_intervals
from classwise.stats.intervals import clopper_pearson


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=40), st.sampled_from([0.05, 0.2]))
def test_of_one_pass_they_are_those_of_clopper_and_pearson(rows: list[tuple[int, bool]], alpha: float) -> None:
    index, correct = np.array([row[0] for row in rows]), np.array([row[1] for row in rows], dtype=np.float64)
    count, hits = np.bincount(index, minlength=5), np.bincount(index, weights=correct, minlength=5)
    for found, expected in zip(
        mean_intervals(correct, index, 5, alpha), clopper_pearson(hits, count, alpha), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert np.isnan(found[4])  # a class without values


@given(st.lists(st.integers(0, 8), min_size=1, max_size=30))
def test_they_contain_the_mean_and_mirror_it(values: list[int]) -> None:
    shares, index = np.array(values) / 8, np.zeros(len(values), dtype=np.int64)
    (low,), (high,) = mean_intervals(shares, index, 1)
    (mirrored_low,), (mirrored_high,) = mean_intervals(1 - shares, index, 1)
    assert 0 <= low <= shares.mean() + 1e-12
    assert shares.mean() - 1e-12 <= high <= 1
    assert (mirrored_low, mirrored_high) == pytest.approx((1 - high, 1 - low), abs=1e-9)


@pytest.mark.parametrize("passes", [1, 3, 8])
@pytest.mark.parametrize("images", [1, 2, 10, 50])
@pytest.mark.parametrize("probability", [0.01, 0.3, 0.99])
def test_each_end_fails_in_at_most_half_of_alpha(passes: int, images: int, probability: float) -> None:
    rng, samples = np.random.default_rng(passes * images), 4000
    shares = rng.binomial(passes, probability, (samples, images)) / passes
    low, high = mean_intervals(shares.ravel(), np.repeat(np.arange(samples), images), samples)
    failures = [float((low > probability).mean()), float((high < probability).mean())]
    # Without the division by the maximum, 0.077 for 8 passes of 1 image.
    assert max(failures) < 0.025 + 4 * (0.025 * 0.975 / samples) ** 0.5


def test_an_invalid_level_is_an_error() -> None:
    with pytest.raises(ClasswiseError, match=r"alpha = 0\.0"):
        mean_intervals([0.5], np.array([0]), 1, 0.0)
