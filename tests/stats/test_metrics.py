from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from classwise.stats import metrics
from classwise.stats.counts import ClassCounts
from tests.refusals import check_refused

accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=12).map(np.array)


def test_micro_and_macro_differ_on_unequal_classes() -> None:
    counts = ClassCounts(np.array([90, 10, 0]), np.array([90, 0, 0]))
    assert metrics.overall_micro(counts) == 0.9
    assert metrics.overall_macro(counts.accuracy) == 0.5
    assert math.isnan(metrics.overall_micro(ClassCounts.zeros(2)))


def test_class_accuracy() -> None:
    np.testing.assert_array_equal(metrics.class_accuracy([1, 1, 0, 1], [1, 0, 1, 1], 3), [1, 2 / 3, np.nan])


def test_variance_and_discrepancy_by_hand() -> None:
    # Mean 0.5; deviations -0.3, -0.1, 0.4: squares add up to 0.26.
    assert metrics.class_variance([0.2, 0.4, 0.9]) == pytest.approx(0.26 / 3)
    assert metrics.max_class_discrepancy([0.2, 0.4, 0.9]) == pytest.approx(0.7)


@given(accuracies, st.integers(0, 10**6))
def test_metrics_ignore_order_and_absent_classes(a: np.ndarray, seed: int) -> None:
    padded = np.concatenate([a, [np.nan, np.nan]])
    other = np.random.default_rng(seed).permutation(padded)
    for metric in (metrics.overall_macro, metrics.class_variance, metrics.max_class_discrepancy):
        assert metric(other) == pytest.approx(metric(a), abs=1e-12)
    assert metrics.worst_share(other, 0.3) == pytest.approx(metrics.worst_share(a, 0.3))
    assert metrics.worst_class(other).accuracy == a.min() == other[metrics.worst_class(other).label]


@given(accuracies)
def test_bounds(a: np.ndarray) -> None:
    gap = metrics.max_class_discrepancy(a)
    # Popoviciu's inequality bounds a variance by a quarter of the squared range.
    assert -1e-12 <= metrics.class_variance(a) <= gap**2 / 4 + 1e-12
    shares = [metrics.worst_share(a, share) for share in (1e-6, 0.2, 0.5, 1.0)]
    assert shares[0] == a.min()
    assert shares == sorted(shares) or np.allclose(shares, sorted(shares))
    assert shares[-1] == pytest.approx(a.mean())


def test_worst_class_takes_the_first_of_ties() -> None:
    assert metrics.worst_class([np.nan, 0.4, 0.3, 0.3]) == (2, 0.3)


@pytest.mark.parametrize(
    ("classes", "share", "lowest"), [(200, 0.2, 40), (10, 0.2, 2), (10, 0.25, 3), (100, 0.07, 7), (3, 0.1, 1)]
)
def test_worst_share_counts_classes_upwards(classes: int, share: float, lowest: int) -> None:
    a = np.arange(classes) / classes
    assert metrics.worst_share(a[::-1], share) == pytest.approx(a[:lowest].mean())


def test_harmonic_means() -> None:
    assert metrics.nrr(0.8, 0.5) == pytest.approx(stats.hmean([0.8, 0.5]))
    assert metrics.hmw(0.5, 0.2) == pytest.approx(stats.hmean([0.5, 0.2]))
    assert metrics.nrr(0, 0) == metrics.hmw(0.9, 0) == 0


def test_robust_and_vulnerable() -> None:
    a = np.array([0.7, 0.5, 0.3, np.nan])
    assert metrics.robust_classes(a, 0.5).tolist() == [True, False, False, False]
    assert metrics.vulnerable_classes(a, 0.5).tolist() == [False, False, True, False]


@given(st.integers(2, 20), st.integers(0, 2**32 - 1))
def test_confidence_variance_is_the_papers_formula(classes: int, seed: int) -> None:
    confidences = special.softmax(np.random.default_rng(seed).normal(0, 3, (5, classes)), axis=1)
    variance = metrics.confidence_variance(confidences)
    np.testing.assert_allclose(variance, ((confidences - 1 / classes) ** 2).sum(axis=1) / classes)
    assert (variance <= (classes - 1) / classes**2 + 1e-12).all()


def test_confidence_variance_extremes() -> None:
    """One-hot confidences reach (C-1)/C^2, 0.09 for ten classes; even ones 0 (consistency.md, section 5)."""
    np.testing.assert_allclose(metrics.confidence_variance(np.eye(10)), 0.09)
    np.testing.assert_allclose(metrics.confidence_variance(np.full((2, 10), 0.1)), 0, atol=1e-30)


def test_trade() -> None:
    run = {"worst": 0.25, "average": 0.49, "baseline_worst": 0.2, "baseline_average": 0.5}
    assert metrics.trade(**run, standard_error=0.005) == pytest.approx(-5)
    assert math.isnan(metrics.trade(**run, standard_error=0.02))
    assert math.isnan(metrics.trade(**run | {"average": 0.5}, standard_error=0.0))


def test_class_confidence_variance() -> None:
    np.testing.assert_allclose(
        metrics.class_confidence_variance([0, 2, 0], [0.02, 0.05, 0.04], 4), [0.03, np.nan, 0.05, np.nan]
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.worst_share([0.5], 0), "worst share"),
        (lambda: metrics.worst_share([0.5], -0.1), "worst share"),
        (lambda: metrics.worst_share([0.5], 1.1), "worst share"),
        (lambda: metrics.worst_share([0.5], math.nan), "worst share"),
        (lambda: metrics.confidence_variance([[2.0, -1.0]]), "apply a softmax"),
        (lambda: metrics.confidence_variance([[0.5, 0.6]]), "apply a softmax"),
        (lambda: metrics.confidence_variance([[np.nan, 1.0]]), "apply a softmax"),
        (lambda: metrics.confidence_variance([0.5, 0.5]), r"shape \(N, C\)"),
        (lambda: metrics.class_variance([np.nan, np.nan]), "no class has an image"),
        (lambda: metrics.worst_class([[0.1, 0.2]]), r"shape \(C,\)"),
        (lambda: metrics.class_confidence_variance([0, 1], [0.1], 2), "each of the 2 labels"),
    ],
)
def test_invalid_arguments(call: Callable[[], object], message: str) -> None:
    check_refused(message, call)


def test_every_metric_is_importable_from_one_place() -> None:
    assert all(hasattr(metrics, name) for name in metrics.__all__)
