"""CV and MCD without bias: exact expectations by enumeration, coverage if classes tie, power, and monotonicity."""

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
from classwise.stats.intervals import Estimate, clopper_pearson
from classwise.stats.metrics.discrepancy import discrepancy_difference, discrepancy_ratio
from classwise.stats.metrics.variance import deviation_difference, unbiased_estimate, unbiased_variance, variance_ratio

COUNTS = st.lists(st.tuples(st.integers(2, 300), st.floats(0, 1)), min_size=2, max_size=6).map(
    lambda rows: ClassCounts(np.array([n for n, _ in rows]), np.array([round(n * share) for n, share in rows]))
)


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
        expected += probability * unbiased_variance(counts)
        plug_in += probability * counts.accuracy.var()
    assert expected == pytest.approx(np.var(law), abs=1e-12)
    p, n = np.array(law), np.array(images)
    assert plug_in - expected == pytest.approx((1 - 1 / len(law)) * (p * (1 - p) / n).mean(), abs=1e-12)


@pytest.mark.parametrize("law", [np.full(10, 0.4), np.linspace(0.2, 0.8, 10), np.array([0.1, *[0.6] * 9])])
def test_the_estimate_of_cv_is_unbiased_in_samples(law: FloatArray) -> None:
    values = [unbiased_variance(counts) for counts in sampled(law, 50, 3000, 0)]
    assert abs(np.mean(values) - law.var()) < 4 * np.std(values) / math.sqrt(len(values))


@pytest.mark.parametrize("images", [10, 25, 100, 1000])
@pytest.mark.parametrize(
    "law",
    [
        np.full(2, 0.4),
        np.full(30, 0.4),
        np.linspace(0.2, 0.8, 5),
        np.array([0.1, *[0.6] * 9]),
        np.linspace(0.005, 0.05, 3),
    ],
    ids=["two tied", "thirty tied", "spread", "one low", "near zero"],
)
def test_the_interval_of_cv_covers_it(law: FloatArray, images: int) -> None:
    found = [unbiased_estimate(counts) for counts in sampled(law, images, 600, images)]
    truth = law.var()
    # 0.95 - 2.2 s.e.
    assert np.mean([interval.low <= truth + 1e-12 and truth - 1e-12 <= interval.high for interval in found]) > 0.93
    assert np.mean([interval.low > truth + 1e-12 for interval in found]) < 0.06


def test_the_interval_of_cv_is_that_of_a_chi_square_variable() -> None:
    """Classes at one half with equal sizes: t = p (1-p)/n and C-1 degrees of freedom, up to n against n - 1."""
    images, classes = 100_000, 10
    correct = np.full(classes, images // 2)
    correct[:5] += 600
    correct[5:] -= 600
    found = unbiased_estimate(ClassCounts(np.full(classes, images), correct))
    scale = 0.25 / images
    quadratic = classes * 0.006**2
    low = found.low * classes / scale
    assert stats.ncx2.sf(quadratic / scale, classes - 1, low) == pytest.approx(0.025, rel=1e-2)
    mean, sd = classes - 1 + found.high * classes / scale, math.sqrt(2 * 9 + 4 * found.high * classes / scale)
    assert mean - quadratic / scale == pytest.approx(1.959964 * sd, rel=1e-2)


def test_a_class_with_one_image_has_no_variance() -> None:
    counts = ClassCounts(np.array([1, 10]), np.array([1, 4]))
    assert math.isnan(unbiased_variance(counts))
    assert all(math.isnan(end) for end in unbiased_estimate(counts))
    assert all(math.isnan(end) for end in variance_ratio(counts, counts))
    assert unbiased_estimate(ClassCounts(np.array([0, 10]), np.array([0, 4]))) == (0, 0, 0)  # a single class
    with_absent = ClassCounts(np.array([20, 0, 30]), np.array([8, 0, 20]))
    assert unbiased_estimate(with_absent) == unbiased_estimate(ClassCounts(np.array([20, 30]), np.array([8, 20])))


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
    for difference, power in ((discrepancy_difference, 1), (deviation_difference, 2)):
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
    assert deviation_difference(robust, clean, 2).low > 0.05
    assert discrepancy_difference(robust, clean, 2).low > 0.05
    assert variance_ratio(robust, clean).low > 2
    assert discrepancy_ratio(robust, clean).low > 2
    assert math.isinf(discrepancy_ratio(robust, ClassCounts(np.full(10, 100), np.full(10, 50))).high)
    plug_in = float(robust.accuracy.var() / clean.accuracy.var())
    assert plug_in < variance_ratio(robust, clean).value


def test_the_bounds_of_mcd_by_textbook_intervals() -> None:
    """One end from simultaneous intervals, the other from one-sided bounds of two classes."""
    one, other = ClassCounts(np.full(3, 40), np.array([4, 20, 35])), ClassCounts(np.full(3, 40), np.array([18, 20, 25]))
    found = discrepancy_difference(one, other, 2, alpha=0.08)
    error = 0.02
    low, high = clopper_pearson(one.correct, one.count, 1 - (1 - error) ** (1 / 3))
    first_low = low[2] - high[0]
    low, high = clopper_pearson(other.correct, other.count, 2 * (1 - math.sqrt(1 - error)))
    assert found.low == pytest.approx(first_low - 2 * (high[2] - low[0]))
    assert found.value == pytest.approx(31 / 40 - 2 * 7 / 40)


OTHER = ClassCounts(np.array([100, 200]), np.array([40, 160]))
ESTIMATORS: list[Callable[[ClassCounts, float], Estimate]] = [
    unbiased_estimate,
    lambda counts, alpha: deviation_difference(counts, OTHER, 2, alpha),
    lambda counts, alpha: discrepancy_difference(counts, OTHER, 2, alpha),
    lambda counts, alpha: variance_ratio(counts, OTHER, alpha),
    lambda counts, alpha: discrepancy_ratio(counts, OTHER, alpha),
]


@settings(deadline=None, max_examples=60)
@given(counts=COUNTS, alpha=st.floats(1e-6, 0.5))
def test_intervals_contain_their_estimate_and_shrink_with_the_level(counts: ClassCounts, alpha: float) -> None:
    for estimator in ESTIMATORS:
        value, low, high = estimator(counts, alpha)
        assert low <= value + 1e-12 <= high + 2e-12
        wider = estimator(counts, alpha / 3)
        assert wider.low <= low + 1e-9
        assert wider.high >= high - 1e-9


@settings(deadline=None, max_examples=40)
@given(counts=COUNTS)
def test_cv_does_not_depend_on_the_order_or_on_exchanging_errors(counts: ClassCounts) -> None:
    order = np.arange(counts.num_classes)[::-1]
    moved = ClassCounts(counts.count[order], counts.correct[order])
    wrong = ClassCounts(counts.count, counts.count - counts.correct)
    for other in (moved, wrong):
        assert unbiased_estimate(other) == pytest.approx(unbiased_estimate(counts), abs=1e-9)
    assert unbiased_variance(counts) == unbiased_estimate(counts).value
