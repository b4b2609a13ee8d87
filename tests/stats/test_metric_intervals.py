"""Intervals of the metrics of all classes: by hand, exact expectations, power and monotonicity."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate, clopper_pearson, wilson
from classwise.stats.metrics import asymmetry, averages, discrepancy, harmonic, lowest, targets, variance
from classwise.stats.registry import all_metrics
from classwise.stats.stratified import class_mean


def shares(images: int, classes: int) -> st.SearchStrategy[ClassCounts]:
    """Counts of at least so many images in each of at least so many classes, with any accuracies."""
    rows = st.lists(st.tuples(st.integers(images, 300), st.floats(0, 1)), min_size=classes, max_size=6)
    return rows.map(lambda drawn: ClassCounts(*np.array([(n, round(n * share)) for n, share in drawn]).T))


METRICS = [
    metric.interval for metric in all_metrics().values() if metric.reads == "counts" and metric.interval is not None
]
"""The intervals of the registered metrics, from the counts under an attack."""


@settings(deadline=None, max_examples=20)
@given(counts=shares(1, 1))
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
    assert discrepancy.mcd_estimate(counts) == pytest.approx(expected)


def test_the_variance_has_the_plug_in_value_and_the_bounds() -> None:
    counts = ClassCounts(np.array([100, 50, 1]), np.array([50, 40, 1]))
    found = variance.cv_estimate(counts)
    assert found.value == pytest.approx(np.var([0.5, 0.8, 1.0]))
    assert found[1:] == variance.variance_interval(counts)
    assert found.low == 0 < found.value < found.high <= 0.25


def test_the_asymmetry_of_two_classes_by_hand() -> None:
    """0.3 - 0.1 of 100 images each: below, Newcombe's interval of exact ones; above, the outer difference of these."""
    low, high = clopper_pearson([30, 10], [100, 100])
    below = np.hypot(0.3 - low[0], high[1] - 0.1)
    low, high = clopper_pearson([30, 10], [100, 100], 2 * (1 - math.sqrt(0.975)))
    found = asymmetry.asymmetry_estimate(np.array([[70, 30], [10, 90]]))
    assert found == pytest.approx((0.2, 0.2 - below, high[0] - low[1]))


def test_the_target_share_has_the_interval_of_the_highest_class() -> None:
    found = targets.target_share_estimate(np.array([[70, 30, 0], [10, 90, 0], [0, 60, 40]]))
    assert found == lowest.best_estimate(ClassCounts(np.full(3, 100), np.array([10, 90, 0])))


def test_the_interval_of_the_worst_fifth_corrects_its_lower_end_for_two_of_eight_classes() -> None:
    counts = ClassCounts(np.full(8, 400), np.array([100, 120, 140, 300, 310, 320, 330, 340]))
    low = clopper_pearson(counts.correct, counts.count, 2 * (1 - math.sqrt(0.975))).low
    high = clopper_pearson(counts.correct, counts.count, 2 * (1 - 0.975 ** (1 / 8))).high
    expected = (0.275, low[:2].mean(), high[:2].mean())
    assert lowest.worst20_estimate(counts) == pytest.approx(expected, abs=1e-12)


def test_harmonic_means_of_equal_values_are_that_value() -> None:
    counts = ClassCounts(np.full(2, 500), np.full(2, 250))
    assert harmonic.hmw_estimate(counts).value == pytest.approx(0.5)
    assert harmonic.nrr_estimate(counts, counts).value == pytest.approx(0.5)
    low, high = harmonic.nrr_estimate(counts, counts)[1:]
    assert low < 0.5 < high


def test_a_class_beyond_the_mean_has_the_wald_interval_of_many_images() -> None:
    """For many images Wilson's interval approaches Wald's, and the error is that of a weighted sum."""
    counts = ClassCounts(np.array([40_000, 10_000, 20_000]), np.array([20_000, 7_000, 4_000]))
    value, low, high = averages.beyond_mean(counts)
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
    sides = [averages.beyond_mean(ClassCounts(np.full(4, 20), row)) for row in drawn]
    held = np.mean([(low <= truth - truth.mean()) & (truth - truth.mean() <= high) for _, low, high in sides], axis=0)
    assert held.min() > 0.93
    none = averages.beyond_mean(ClassCounts(np.array([0, 10, 10]), np.array([0, 0, 10])))
    assert np.isnan(none[0][0])
    assert none[1][1] == -0.5 < none[2][1]


def sampled(law: FloatArray, images: int, samples: int, seed: int) -> list[ClassCounts]:
    drawn = np.random.default_rng(seed).binomial(images, law, size=(samples, len(law)))
    return [ClassCounts(np.full(len(law), images), row) for row in drawn]


@pytest.mark.parametrize(
    ("law", "images"), [((0.3, 0.8), (2, 5)), ((0.5, 0.5, 0.5), (3, 3, 4)), ((0.0, 0.1, 1.0, 0.6), (2, 4, 3, 2))]
)
def test_the_estimate_of_cv_is_unbiased(law: tuple[float, ...], images: tuple[int, ...]) -> None:
    """The expectation over all outcomes of all classes is the true CV; that of the plug-in CV is not."""
    expected = plug_in = 0.0
    for correct in itertools.product(*(range(n + 1) for n in images)):
        probability = math.prod(stats.binom.pmf(k, n, p) for k, n, p in zip(correct, images, law, strict=True))
        counts = ClassCounts(np.array(images), np.array(correct))
        expected += probability * variance.unbiased_variance(counts)
        plug_in += probability * counts.accuracy.var()
    assert expected == pytest.approx(np.var(law), abs=1e-12)
    p, n = np.array(law), np.array(images)
    assert plug_in - expected == pytest.approx((1 - 1 / len(law)) * (p * (1 - p) / n).mean(), abs=1e-12)


def test_the_interval_of_cv_is_that_of_a_chi_square_variable() -> None:
    """Classes at one half with equal sizes: t = p (1-p)/n and C-1 degrees of freedom, up to n against n - 1."""
    images, classes = 100_000, 10
    correct = np.full(classes, images // 2)
    correct[:5] += 600
    correct[5:] -= 600
    found = variance.unbiased_estimate(ClassCounts(np.full(classes, images), correct))
    scale = 0.25 / images
    quadratic = classes * 0.006**2
    low = found.low * classes / scale
    assert stats.ncx2.sf(quadratic / scale, classes - 1, low) == pytest.approx(0.025, rel=1e-2)
    mean, sd = classes - 1 + found.high * classes / scale, math.sqrt(2 * 9 + 4 * found.high * classes / scale)
    assert mean - quadratic / scale == pytest.approx(1.959964 * sd, rel=1e-2)


def test_a_class_with_one_image_has_no_variance() -> None:
    counts = ClassCounts(np.array([1, 10]), np.array([1, 4]))
    assert math.isnan(variance.unbiased_variance(counts))
    assert all(math.isnan(end) for end in variance.unbiased_estimate(counts))
    assert all(math.isnan(end) for end in variance.variance_ratio(counts, counts))
    assert variance.unbiased_estimate(ClassCounts(np.array([0, 10]), np.array([0, 4]))) == (0, 0, 0)  # a single class
    with_absent, without = ([[20, 0, 30], [8, 0, 20]], [[20, 30], [8, 20]])
    assert variance.unbiased_estimate(ClassCounts(*np.array(with_absent))) == variance.unbiased_estimate(
        ClassCounts(*np.array(without))
    )


FIRST = {
    "both tied": (np.full(10, 0.3), np.full(10, 0.6), 1),
    "equal spread": (np.linspace(0.3, 0.7, 10), np.linspace(0.3, 0.7, 10), 1),
    "one against many": (np.array([0.2, *[0.6] * 9]), np.array([0.6, *[0.2] * 9]), 1),
    "twice as wide": (np.linspace(0.1, 0.7, 10), np.linspace(0.3, 0.6, 10), 2),
}


@pytest.mark.parametrize("images", [25, 200])
@pytest.mark.parametrize("name", FIRST)
def test_noise_alone_is_no_difference(name: str, images: int) -> None:
    """The true difference is 0: MCD and (but for the root of two) CV of one are ``factor`` times those of the other."""
    law, other, factor = FIRST[name]
    for difference, power in ((discrepancy.discrepancy_difference, 1), (variance.deviation_difference, 2)):
        pairs = zip(sampled(law, images, 200, 1), sampled(other, images, 200, 2), strict=True)
        found = [difference(first, second, float(factor**power)) for first, second in pairs]
        assert np.mean([interval.low > 0 or interval.high < 0 for interval in found]) <= 0.05
        assert all(interval.low <= interval.value <= interval.high for interval in found)


def test_differences_have_power() -> None:
    """CIFAR-10 in the papers: MCD five times and CV twenty-eight times as large."""
    robust, clean = (
        sampled(np.linspace(0.2, 0.75, 10), 500, 1, 0)[0],
        sampled(np.linspace(0.87, 0.97, 10), 500, 1, 1)[0],
    )
    assert variance.deviation_difference(robust, clean, 2).low > 0.05
    assert discrepancy.discrepancy_difference(robust, clean, 2).low > 0.05
    assert variance.variance_ratio(robust, clean).low > 2
    assert discrepancy.discrepancy_ratio(robust, clean).low > 2
    assert math.isinf(discrepancy.discrepancy_ratio(robust, ClassCounts(np.full(10, 100), np.full(10, 50))).high)
    plug_in = float(robust.accuracy.var() / clean.accuracy.var())
    assert plug_in < variance.variance_ratio(robust, clean).value


def test_the_bounds_of_mcd_by_textbook_intervals() -> None:
    """One end from simultaneous intervals, the other from one-sided bounds of two classes."""
    one, other = ClassCounts(np.full(3, 40), np.array([4, 20, 35])), ClassCounts(np.full(3, 40), np.array([18, 20, 25]))
    found = discrepancy.discrepancy_difference(one, other, 2, alpha=0.08)
    error = 0.02
    low, high = clopper_pearson(one.correct, one.count, 1 - (1 - error) ** (1 / 3))
    first_low = low[2] - high[0]
    low, high = clopper_pearson(other.correct, other.count, 2 * (1 - math.sqrt(1 - error)))
    assert found.low == pytest.approx(first_low - 2 * (high[2] - low[0]))
    assert found.value == pytest.approx(31 / 40 - 2 * 7 / 40)


OTHER = ClassCounts(np.array([100, 200]), np.array([40, 160]))
ESTIMATORS: list[Callable[[ClassCounts, float], Estimate]] = [
    variance.unbiased_estimate,
    lambda counts, alpha: variance.deviation_difference(counts, OTHER, 2, alpha),
    lambda counts, alpha: discrepancy.discrepancy_difference(counts, OTHER, 2, alpha),
    lambda counts, alpha: variance.variance_ratio(counts, OTHER, alpha),
    lambda counts, alpha: discrepancy.discrepancy_ratio(counts, OTHER, alpha),
]


@settings(deadline=None, max_examples=60)
@given(counts=shares(2, 2), alpha=st.floats(1e-6, 0.5))
def test_intervals_contain_their_estimate_and_shrink_with_the_level(counts: ClassCounts, alpha: float) -> None:
    for estimator in ESTIMATORS:
        value, low, high = estimator(counts, alpha)
        assert low <= value + 1e-12 <= high + 2e-12
        wider = estimator(counts, alpha / 3)
        assert wider.low <= low + 1e-9
        assert wider.high >= high - 1e-9


@settings(deadline=None, max_examples=40)
@given(counts=shares(2, 2))
def test_cv_does_not_depend_on_the_order_or_on_exchanging_errors(counts: ClassCounts) -> None:
    order = np.arange(counts.num_classes)[::-1]
    moved = ClassCounts(counts.count[order], counts.correct[order])
    wrong = ClassCounts(counts.count, counts.count - counts.correct)
    for other in (moved, wrong):
        assert variance.unbiased_estimate(other) == pytest.approx(variance.unbiased_estimate(counts), abs=1e-9)
    assert variance.unbiased_variance(counts) == variance.unbiased_estimate(counts).value
