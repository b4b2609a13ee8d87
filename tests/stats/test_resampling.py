from __future__ import annotations

import numpy as np
import pytest

from classwise.stats.resampling import percentiles, resampled_accuracies
from tests.refusals import check_refused


def test_joint_resampling_has_the_moments_of_the_bootstrap() -> None:
    """Mean a_c, variance a(1-a)/n, and the covariance of two predictions of the same images."""
    generator = np.random.default_rng(0)
    labels = np.array([0] * 40 + [1] * 60 + [3] * 5)
    first = generator.random(105) < 0.6
    second = first & (generator.random(105) < 0.7)
    drawn = resampled_accuracies([first, second], labels, 4, resamples=20000)
    assert drawn.shape == (20000, 2, 4)
    assert np.isnan(drawn[:, :, 2]).all()
    for label in (0, 1, 3):
        a, b = first[labels == label], second[labels == label]
        wanted = np.cov(a, b, bias=True) / len(a)
        assert np.cov(drawn[:, :, label].T, bias=True) == pytest.approx(wanted, abs=0.05 * wanted.max() + 1e-9)
        assert drawn[:, :, label].mean(axis=0) == pytest.approx([a.mean(), b.mean()], abs=0.01)
    assert (drawn[:, 1] <= drawn[:, 0] + 1e-12)[:, [0, 1, 3]].all()  # the second is right only where the first is


def test_percentiles_exclude_nan() -> None:
    found = percentiles(0.5, [np.nan, *np.linspace(0, 1, 101)], 0.1)
    assert found == pytest.approx((0.5, 0.05, 0.95))
    assert np.isnan(percentiles(0.5, [np.nan]).low)


def test_outcomes_must_have_two_dimensions() -> None:
    check_refused(r"\(predictions, images\)", resampled_accuracies, [True, False], [0, 0], 1)
