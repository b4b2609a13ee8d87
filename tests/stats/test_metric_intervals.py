"""Intervals of the metrics of all classes: by hand, and their coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import clopper_pearson, wilson
from classwise.stats.metrics.asymmetry import asymmetry_estimate
from classwise.stats.metrics.averages import beyond_mean
from classwise.stats.metrics.discrepancy import mcd_estimate
from classwise.stats.metrics.harmonic import hmw_estimate, nrr_estimate
from classwise.stats.metrics.lowest import best_estimate, worst20_estimate, worst_estimate
from classwise.stats.metrics.targets import target_share_estimate
from classwise.stats.metrics.variance import cv_estimate, variance_interval
from classwise.stats.registry import all_metrics
from classwise.stats.stratified import class_mean

COUNTS = st.lists(st.tuples(st.integers(1, 300), st.floats(0, 1)), min_size=1, max_size=5).map(
    lambda rows: ClassCounts(np.array([n for n, _ in rows]), np.array([round(n * share) for n, share in rows]))
)
METRICS = [
    metric.interval for metric in all_metrics().values() if metric.reads == "counts" and metric.interval is not None
]
"""The intervals of the registered metrics, from the counts under an attack."""


@settings(deadline=None, max_examples=20)
@given(counts=COUNTS)
def test_every_interval_contains_its_estimate_and_is_within_the_range(counts: ClassCounts) -> None:
    for metric in METRICS:
        value, low, high = metric(counts)
        assert -1e-12 <= low <= value + 1e-12, metric
        assert value - 1e-12 <= high <= 1 + 1e-12, metric


def test_absent_classes_change_nothing() -> None:
    whole = ClassCounts(np.array([100, 80]), np.array([60, 20]))
    with_absent = ClassCounts(np.array([100, 0, 80]), np.array([60, 0, 20]))
    for metric in METRICS:
        assert metric(with_absent) == pytest.approx(metric(whole))


def test_balanced_classes_of_equal_accuracy_have_the_interval_of_a_proportion() -> None:
    counts = ClassCounts(np.full(4, 250), np.full(4, 100))
    low, high = wilson(400, 1000)
    assert class_mean(counts) == pytest.approx((0.4, float(low), float(high)), abs=1e-3)


def test_the_discrepancy_of_classes_far_apart_by_hand() -> None:
    """The lower end is corrected for four bounds, the upper end for those of the highest and the lowest class."""
    counts = ClassCounts(np.array([1000, 1000]), np.array([800, 200]))
    low, high = clopper_pearson([800, 200], [1000, 1000], 1 - math.sqrt(1 - 0.025))
    outer_low, outer_high = clopper_pearson([800, 200], [1000, 1000], 2 * (1 - math.sqrt(1 - 0.025)))
    expected = (0.6, low[0] - high[1], outer_high[0] - outer_low[1])
    assert mcd_estimate(counts) == pytest.approx(expected)


def test_the_variance_has_the_plug_in_value_and_the_bounds() -> None:
    counts = ClassCounts(np.array([100, 50, 1]), np.array([50, 40, 1]))
    found = cv_estimate(counts)
    assert found.value == pytest.approx(np.var([0.5, 0.8, 1.0]))
    assert found[1:] == variance_interval(counts)
    assert found.low == 0 < found.value < found.high <= 0.25


@pytest.mark.parametrize("images", [(1, 1, 1, 1), (2, 2, 1, 50), (200, 200, 200, 200)])
@pytest.mark.parametrize("truth", [(0.2, 0.3, 0.3, 0.6), (0.02, 0.02, 0.02, 0.02), (0.0, 1.0, 1.0, 1.0)])
def test_intervals_over_classes_have_at_least_nominal_coverage(
    images: tuple[int, ...], truth: tuple[float, ...]
) -> None:
    random = np.random.default_rng(3)
    drawn = [ClassCounts(np.array(images), random.binomial(images, truth)) for _ in range(200)]
    for metric, value in (
        (cv_estimate, np.var(truth)),
        (mcd_estimate, np.ptp(truth)),
        (worst_estimate, min(truth)),
    ):
        hits = [bool(low - 1e-12 <= value <= high + 1e-12) for _, low, high in map(metric, drawn)]
        assert np.mean(hits) >= 0.92  # the standard error of 200 samples is 0.015


@pytest.mark.parametrize("images", [20, 200])
def test_intervals_of_confusions_have_at_least_nominal_coverage(images: int) -> None:
    """Of a symmetric matrix, where every pair and every predicted class ties, and of one with a rare confusion."""
    symmetric = np.full((5, 5), 0.1) + 0.5 * np.eye(5)
    skewed = np.array([[0.7, 0.29, 0.01], [0.1, 0.9, 0.0], [0.0, 0.5, 0.5]])
    random = np.random.default_rng(0)
    for truth, gap, share in ((symmetric, 0.0, 0.2), (skewed, 0.5, 0.79 / 0.9)):
        drawn = [random.multinomial(images, truth) for _ in range(200)]
        for interval, value in ((asymmetry_estimate, gap), (target_share_estimate, share)):
            hits = [low <= value <= high for _, low, high in map(interval, drawn)]
            assert np.mean(hits) >= 0.95, interval


def test_the_asymmetry_of_two_classes_by_hand() -> None:
    """0.3 - 0.1 of 100 images each: below, Newcombe's interval of exact ones; above, the outer difference of these."""
    low, high = clopper_pearson([30, 10], [100, 100])
    below = np.hypot(0.3 - low[0], high[1] - 0.1)
    low, high = clopper_pearson([30, 10], [100, 100], 2 * (1 - math.sqrt(0.975)))
    found = asymmetry_estimate(np.array([[70, 30], [10, 90]]))
    assert found == pytest.approx((0.2, 0.2 - below, high[0] - low[1]))


def test_the_target_share_has_the_interval_of_the_highest_class() -> None:
    found = target_share_estimate(np.array([[70, 30, 0], [10, 90, 0], [0, 60, 40]]))
    assert found == best_estimate(ClassCounts(np.full(3, 100), np.array([10, 90, 0])))


def test_the_interval_of_the_worst_fifth_corrects_its_lower_end_for_two_of_eight_classes() -> None:
    counts = ClassCounts(np.full(8, 400), np.array([100, 120, 140, 300, 310, 320, 330, 340]))
    low = clopper_pearson(counts.correct, counts.count, 2 * (1 - math.sqrt(0.975))).low
    high = clopper_pearson(counts.correct, counts.count, 2 * (1 - 0.975 ** (1 / 8))).high
    expected = (0.275, low[:2].mean(), high[:2].mean())
    assert worst20_estimate(counts) == pytest.approx(expected, abs=1e-12)


def test_harmonic_means_of_equal_values_are_that_value() -> None:
    counts = ClassCounts(np.full(2, 500), np.full(2, 250))
    assert hmw_estimate(counts).value == pytest.approx(0.5)
    assert nrr_estimate(counts, counts).value == pytest.approx(0.5)
    low, high = nrr_estimate(counts, counts)[1:]
    assert low < 0.5 < high


def test_a_class_beyond_the_mean_has_the_wald_interval_of_many_images() -> None:
    """For many images Wilson's interval approaches Wald's, and the error is that of a weighted sum."""
    counts = ClassCounts(np.array([40_000, 10_000, 20_000]), np.array([20_000, 7_000, 4_000]))
    value, low, high = beyond_mean(counts)
    a, n = counts.accuracy, counts.count
    weights = np.eye(3) - 1 / 3
    assert value == pytest.approx(weights @ a)
    reach = 1.96 * np.sqrt((weights**2) @ (a * (1 - a) / n))
    assert high - value == pytest.approx(reach, rel=0.02)
    assert value - low == pytest.approx(reach, rel=0.02)


@pytest.mark.slow
def test_a_class_beyond_the_mean_is_covered() -> None:
    """Also at accuracies near 0 and 1, with few images."""
    truth = np.array([0.02, 0.5, 0.9, 0.97])
    drawn = np.random.default_rng(0).binomial(20, truth, size=(2000, 4))
    sides = [beyond_mean(ClassCounts(np.full(4, 20), row)) for row in drawn]
    held = np.mean([(low <= truth - truth.mean()) & (truth - truth.mean() <= high) for _, low, high in sides], axis=0)
    assert held.min() > 0.93
    none = beyond_mean(ClassCounts(np.array([0, 10, 10]), np.array([0, 0, 10])))
    assert np.isnan(none[0][0])
    assert none[1][1] == -0.5 < none[2][1]
