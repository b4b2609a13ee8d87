"""Interval estimators of biased statistics: false positive rates under the null hypothesis, and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from classwise.papers.experiments.class_wise import filled_bins
from classwise.papers.interval_estimators import (
    IntervalEstimator,
    Resampled,
    alike,
    exactly,
    greatest,
    minus,
    negative,
    plus,
    wider,
    widest,
)
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate

EDGES = np.linspace(0, 1, 11)


def at(value: float, low: float, high: float) -> IntervalEstimator:
    """An estimator with the given interval at 5 %, and one twice as wide at smaller levels."""

    def part(level: float) -> Estimate:
        wide = 1 if level >= 0.05 else 2
        return Estimate(value, value - wide * (value - low), value + wide * (high - value))

    return part


def test_arithmetic_of_parts() -> None:
    assert minus(at(5, 4, 7), at(2, 1, 4))(0.05) == (3, (5 - 2) - (2 + 4), (5 + 4) - (2 - 2))
    assert minus(at(5, 4, 7), at(2, 1, 4))(0.1) == (3, 4 - 4, 7 - 1)
    assert negative(at(5, 4, 7))(0.05) == (-5, -7, -4)
    assert plus(at(5, 4, 7), -1)(0.05) == (4, 3, 6)
    assert greatest([at(1, 0, 4), at(2, 1, 3)])(0.1) == (2, 1, 4)
    assert greatest([at(1, 0, 4), at(2, 1, 3)])(0.05) == (2, 0, 7)


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        (at(3, 1, 5), (2, 1, 4)),
        (at(-3, -5, -1), (-2, -4, -1)),
        (at(1, -1, 3), (2, -4, 4)),
        (at(-1, -3, 1), (-2, -4, 4)),
    ],
)
def test_alike_follows_the_sign_where_it_is_known(
    sign: IntervalEstimator, expected: tuple[float, float, float]
) -> None:
    assert alike(sign, at(2, 1, 4))(0.1) == expected


def test_noise_alone_is_no_discrepancy() -> None:
    """Classes of equal accuracy: the lower end is 0 in nearly all samples, although the plug-in is far above 0."""
    drawn = np.random.default_rng(0).binomial(20, 0.5, size=(200, 50))
    found = [widest(ClassCounts(np.full(50, 20), row))(0.05) for row in drawn]
    assert np.mean([estimate.value for estimate in found]) > 40
    assert np.mean([estimate.low > 0 for estimate in found]) <= 0.05
    assert widest(ClassCounts(np.array([200, 200]), np.array([180, 100])))(0.05).low > 20


def rows(*laws: FloatArray, images: int, seed: int) -> Resampled:
    """Independent rows of outcomes on ``images`` images of each class; ``laws`` are the class accuracies."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(laws[0])), images)
    return Resampled(np.stack([generator.random(len(labels)) < law[labels] for law in laws]), labels, len(laws[0]))


def counts(law: FloatArray, images: int, seed: int) -> ClassCounts:
    return ClassCounts(np.full(len(law), images), np.random.default_rng(seed).binomial(images, law))


TIED, SINGLE = np.full(10, 0.3), np.array([0.3, *[0.6] * 9])
ENDS, PAIR = np.array([0.3] * 5 + [0.5] * 5), np.array([0.3, *[0.4] * 8, 0.5])


def test_noise_alone_is_no_difference_of_worst_classes() -> None:
    """In samples, the minimum over ten classes at 30 % is below that over one; the true minima are equal."""
    found = [rows(SINGLE, TIED, images=100, seed=seed).worst()(0.05) for seed in range(60)]
    assert np.mean([estimate.value for estimate in found]) > 4
    assert sum(estimate.low > 0 or estimate.high < 0 for estimate in found) <= 3
    assert rows(SINGLE + 0.2, TIED, images=1000, seed=0).worst()(0.05).low > 0


def test_noise_alone_is_no_difference_of_discrepancies() -> None:
    found = [wider(counts(ENDS, 100, 2 * seed), counts(PAIR, 100, 2 * seed + 1))(0.05) for seed in range(60)]
    assert np.mean([estimate.value for estimate in found]) > 2
    assert sum(estimate.low > 0 or estimate.high < 0 for estimate in found) <= 3
    assert wider(counts(np.array([0.1, 0.9]), 100, 0), counts(np.array([0.5, 0.55]), 100, 1))(0.05).low > 0


@pytest.mark.slow
def test_noise_alone_is_no_maximum_above_zero() -> None:
    """Nine attacks of the same strength as the first."""

    def drop(images: Resampled) -> Estimate:
        return greatest([images.total(0, place) for place in range(1, 10)])(0.05)

    found = [drop(rows(*[TIED] * 10, images=50, seed=seed)) for seed in range(40)]
    assert np.mean([estimate.value for estimate in found]) > 2
    assert sum(estimate.low > 0 for estimate in found) <= 3


def test_edge_classes_fill_no_further_bins() -> None:
    """A hundred classes at the centres of four bins: noise moves some into other bins, which must not count."""
    law = np.repeat([0.25, 0.35, 0.45, 0.55], 25)
    found = [filled_bins(counts(law, 100, seed), EDGES)(0.05) for seed in range(60)]
    assert np.mean([estimate.value for estimate in found]) > 5
    assert all(estimate.low <= 4 <= estimate.high for estimate in found)
    wide = filled_bins(counts(np.array([0.05, 0.15, 0.25, 0.35, 0.45, 0.55]), 10_000, 0), EDGES)
    assert wide(0.05) == (6, 6, 6)


def test_bins_hold_their_upper_ends() -> None:
    """As in `spread`: 0 and 0.1 are in the first bin, 0.2 in the second."""
    assert filled_bins(ClassCounts(np.array([10, 10, 10]), np.array([0, 1, 2])), EDGES)(0.05).value == 2


def test_an_exact_number_stays_exact() -> None:
    assert plus(negative(exactly(2.0)), 3)(0.01) == (1, 1, 1)
