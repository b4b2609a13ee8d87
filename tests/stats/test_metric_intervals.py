"""The box bounds against brute force: corners for the greatest value, a fine grid for the least."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals, wilson
from classwise.stats.metric import all_metrics

COUNTS = st.lists(st.tuples(st.integers(1, 300), st.floats(0, 1)), min_size=1, max_size=5).map(
    lambda rows: ClassCounts(np.array([n for n, _ in rows]), np.array([round(n * share) for n, share in rows]))
)
METRICS = [
    metric.interval for metric in all_metrics().values() if metric.reads == "counts" and metric.interval is not None
]
"""The intervals of the registered metrics, from the counts under an attack."""


@settings(deadline=None, max_examples=20)
@given(counts=COUNTS)
def test_the_variance_is_bounded_by_the_corners_and_by_every_point_of_the_box(counts: ClassCounts) -> None:
    low, high = class_intervals(counts, simultaneous=True)
    found = metric_intervals.variance(counts)
    corners = [np.var(corner) for corner in itertools.product(*zip(low, high, strict=True))]
    assert found.high == pytest.approx(max(corners), abs=1e-12)
    clipped = [np.var(np.clip(point, low, high)) for point in np.linspace(0, 1, 401)]
    assert found.low <= min(clipped) + 1e-12
    assert found.low == pytest.approx(min(clipped), abs=2e-3)


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
    assert metric_intervals.macro(counts) == pytest.approx((0.4, float(low), float(high)), abs=1e-3)


def test_the_discrepancy_of_classes_far_apart_by_hand() -> None:
    counts = ClassCounts(np.array([1000, 1000]), np.array([800, 200]))
    low, high = class_intervals(counts, simultaneous=True)
    assert metric_intervals.discrepancy(counts) == pytest.approx((0.6, low[0] - high[1], high[0] - low[1]))


def test_box_intervals_have_at_least_nominal_coverage() -> None:
    random = np.random.default_rng(3)
    truth = np.array([0.2, 0.3, 0.3, 0.6])
    images = np.full(4, 200)
    drawn = [ClassCounts(images, random.binomial(images, truth)) for _ in range(300)]
    for metric, value in (
        (metric_intervals.variance, truth.var()),
        (metric_intervals.discrepancy, 0.4),
        (metric_intervals.worst, 0.2),
    ):
        hits = [low <= value <= high for _, low, high in map(metric, drawn)]
        assert np.mean(hits) >= 0.95


@pytest.mark.parametrize("images", [20, 200])
def test_intervals_of_confusions_have_at_least_nominal_coverage(images: int) -> None:
    """Of a symmetric matrix, where every pair and every predicted class ties, and of one with a rare confusion."""
    symmetric = np.full((5, 5), 0.1) + 0.5 * np.eye(5)
    skewed = np.array([[0.7, 0.29, 0.01], [0.1, 0.9, 0.0], [0.0, 0.5, 0.5]])
    random = np.random.default_rng(0)
    for truth, gap, share in ((symmetric, 0.0, 0.2), (skewed, 0.5, 0.79 / 0.9)):
        drawn = [random.multinomial(images, truth) for _ in range(200)]
        for interval, value in ((metric_intervals.asymmetry, gap), (metric_intervals.target_share, share)):
            hits = [low <= value <= high for _, low, high in map(interval, drawn)]
            assert np.mean(hits) >= 0.95, interval


def test_the_asymmetry_of_two_classes_has_newcombes_interval() -> None:
    """0.3 - 0.1 of 100 images each, by Clopper and Pearson's intervals of the two rates."""
    counts = ClassCounts(np.array([100, 100]), np.array([30, 10]))
    (first, second), (low, high) = counts.accuracy, class_intervals(counts, guaranteed=True)
    below, above = np.hypot(first - low[0], high[1] - second), np.hypot(high[0] - first, second - low[1])
    found = metric_intervals.asymmetry(np.array([[70, 30], [10, 90]]))
    assert found == pytest.approx((0.2, 0.2 - below, 0.2 + above))


def test_the_target_share_has_the_interval_of_the_highest_class() -> None:
    found = metric_intervals.target_share(np.array([[70, 30, 0], [10, 90, 0], [0, 60, 40]]))
    assert found == metric_intervals.best(ClassCounts(np.full(3, 100), np.array([10, 90, 0])))


def test_the_interval_of_the_worst_fifth_corrects_its_lower_end_for_two_of_eight_classes() -> None:
    counts = ClassCounts(np.full(8, 400), np.array([100, 120, 140, 300, 310, 320, 330, 340]))
    low = class_intervals(counts, 2 * (1 - math.sqrt(0.975)), guaranteed=True).low
    high = class_intervals(counts, 2 * (1 - 0.975 ** (1 / 8)), guaranteed=True).high
    expected = (0.275, low[:2].mean(), high[:2].mean())
    assert metric_intervals.worst_fifth(counts) == pytest.approx(expected, abs=1e-12)


def test_harmonic_means_of_equal_values_are_that_value() -> None:
    counts = ClassCounts(np.full(2, 500), np.full(2, 250))
    assert metric_intervals.overall_and_worst(counts).value == pytest.approx(0.5)
    assert metric_intervals.clean_and_robust(counts, counts).value == pytest.approx(0.5)
    low, high = metric_intervals.clean_and_robust(counts, counts)[1:]
    assert low < 0.5 < high


def test_a_class_beyond_the_mean_has_the_wald_interval_of_many_images() -> None:
    """For many images Wilson's interval approaches Wald's, and the error is that of a weighted sum."""
    counts = ClassCounts(np.array([40_000, 10_000, 20_000]), np.array([20_000, 7_000, 4_000]))
    value, low, high = metric_intervals.beyond_mean(counts)
    a, n = counts.accuracy, counts.count
    weights = np.eye(3) - 1 / 3
    assert value == pytest.approx(weights @ a)
    reach = 1.96 * np.sqrt((weights**2) @ (a * (1 - a) / n))
    assert high - value == pytest.approx(reach, rel=0.02)
    assert value - low == pytest.approx(reach, rel=0.02)


def test_a_class_beyond_the_mean_is_covered() -> None:
    """Also at accuracies near 0 and 1, with few images."""
    truth = np.array([0.02, 0.5, 0.9, 0.97])
    drawn = np.random.default_rng(0).binomial(20, truth, size=(2000, 4))
    sides = [metric_intervals.beyond_mean(ClassCounts(np.full(4, 20), row)) for row in drawn]
    held = np.mean([(low <= truth - truth.mean()) & (truth - truth.mean() <= high) for _, low, high in sides], axis=0)
    assert held.min() > 0.93
    none = metric_intervals.beyond_mean(ClassCounts(np.array([0, 10, 10]), np.array([0, 0, 10])))
    assert np.isnan(none[0][0])
    assert none[1][1] == -0.5 < none[2][1]
