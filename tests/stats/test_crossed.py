"""Bounds for new images, components of variance, and the choice of classes by sample splitting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from classwise.stats.bounded_means import mean_intervals
from classwise.stats.crossed import Crossed, added_by_runs, lower_bound, upper_bound
from classwise.stats.intervals import clopper_pearson
from classwise.stats.sample_splitting import Halves, hedged_weights
from tests.refusals import check_refused


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.0005, 0.4))
def test_bounds_of_zeros_and_ones_are_those_of_clopper_and_pearson(counts: tuple[int, int], error: float) -> None:
    correct, images = counts
    share = correct / images
    low, high = clopper_pearson(correct, images, 2 * error)
    assert upper_bound(images, share, share, error).bound == pytest.approx(float(high), abs=1e-9)
    assert lower_bound(images, share, share, error).bound == pytest.approx(float(low), abs=1e-9)


@pytest.mark.parametrize("images", [5, 20, 200])
@pytest.mark.parametrize("law", ["thirds", "beta", "rare"])
def test_upper_bounds_of_other_values_are_rarely_too_low(images: int, law: str) -> None:
    rng = np.random.default_rng(images)
    size = (4000, images)
    values, truth = {
        "thirds": (rng.binomial(3, 0.2, size) / 3, 0.2),
        "beta": (rng.beta(0.5, 2, size), 0.2),
        "rare": ((rng.random(size) < 0.1) * rng.binomial(3, 0.5, size) / 3, 0.05),
    }[law]
    bound = upper_bound(images, values.mean(axis=1), (values**2).mean(axis=1), 0.05).bound
    assert np.mean(bound < truth) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_components_are_those_of_the_analysis_of_variance(runs: int, random: int) -> None:
    rng = np.random.default_rng(random)
    values = rng.random((runs, 12)).round(1)
    table = Crossed.of(values, np.zeros(12, np.int64), 2)
    mean, rows, columns = values.mean(), values.mean(axis=1), values.mean(axis=0)
    residual = ((values - rows[:, None] - columns + mean) ** 2).sum() / ((runs - 1) * 11)
    assert table.noise[0] == pytest.approx(residual / (runs * 12), abs=1e-12)
    assert table.over_runs[0] == pytest.approx(rows.var(ddof=1) / runs)
    assert table.images[0] == pytest.approx(columns.var() / 12)
    assert np.isnan([table.mean[1], table.images[1], table.noise[1]]).all()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("runs", [2, 3, 5])
def test_what_runs_add_keeps_the_level(runs: int, share: float) -> None:
    """Normal effects of images (known variance) and of runs: the quadrature covers for every share of the runs."""
    rng = np.random.default_rng(runs)
    repetitions, noise = 40_000, 0.3 * (1 - share)
    of_runs = rng.normal(0, np.sqrt((share + noise) * runs), (repetitions, runs))
    value = of_runs.mean(axis=1) + rng.normal(0, np.sqrt(1 - share - noise), repetitions)
    images = np.full(repetitions, 1 - share)
    over_runs = of_runs.var(axis=1, ddof=1) / runs
    added = added_by_runs(images, [over_runs], [np.full(repetitions, noise)], [runs], 0.05)
    reach = np.sqrt(stats.norm.isf(0.025) ** 2 * images + added)
    assert np.mean(np.abs(value) <= reach) >= 0.942 - 0.004


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 0.1)), min_size=1, max_size=6),
    st.floats(0.5, 3),
)
def test_hedged_weights_have_the_least_predicted_bound(classes: list[tuple[float, float]], z: float) -> None:
    accuracy, variance = np.array(classes).T
    weights = hedged_weights(accuracy, variance, z)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()

    def predicted(given: np.ndarray) -> float:
        return float(given @ accuracy + z * np.sqrt(given**2 @ variance))

    starts = [np.full(len(classes), 1 / len(classes)), np.eye(len(classes))[accuracy.argmin()]]
    found = min(
        optimize.minimize(
            predicted,
            start,
            method="SLSQP",
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(np.ones(len(classes)), 1, 1),
        ).fun
        for start in starts
    )
    assert predicted(weights) <= found + 1e-6


def test_halves_are_of_the_same_images() -> None:
    """Both halves together have all images, and a half of four of them is hypergeometric."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [8, 5, 1])
    right = rng.random((2, 14)) < 0.5
    halves = Halves.draw(right, labels, 4000, seed=0)
    first, second = halves.correct[:4000], halves.correct[4000:]
    whole = np.stack([np.bincount(labels, weights=run) for run in right])
    assert (first + second == whole).all()
    assert halves.size.tolist() == [4, 2, 0]
    found = np.bincount(first[:, 0, 0].astype(int), minlength=5) / 4000
    expected = stats.hypergeom(8, int(whole[0, 0]), 4).pmf(np.arange(5))
    np.testing.assert_allclose(found, expected, atol=0.03)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=40), st.sampled_from([0.05, 0.2]))
def test_means_of_one_pass_are_those_of_clopper_and_pearson(rows: list[tuple[int, bool]], alpha: float) -> None:
    index, correct = np.array([row[0] for row in rows]), np.array([row[1] for row in rows], dtype=np.float64)
    count, hits = np.bincount(index, minlength=5), np.bincount(index, weights=correct, minlength=5)
    for found, expected in zip(
        mean_intervals(correct, index, 5, alpha), clopper_pearson(hits, count, alpha), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert np.isnan(found[4])  # a class without values


@given(st.lists(st.integers(0, 8), min_size=1, max_size=30))
def test_intervals_of_means_contain_the_mean_and_mirror_it(values: list[int]) -> None:
    shares, index = np.array(values) / 8, np.zeros(len(values), dtype=np.int64)
    (low,), (high,) = mean_intervals(shares, index, 1)
    (mirrored_low,), (mirrored_high,) = mean_intervals(1 - shares, index, 1)
    assert 0 <= low <= shares.mean() + 1e-12
    assert shares.mean() - 1e-12 <= high <= 1
    assert (mirrored_low, mirrored_high) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_an_invalid_level_is_an_error() -> None:
    check_refused(r"alpha = 0\.0", mean_intervals, [0.5], np.array([0]), 1, 0.0)
