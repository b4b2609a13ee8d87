"""Power: against binomial tails of scipy, and the search against the power that it reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from classwise.stats.counts import ClassCounts, PairedCounts
from classwise.stats.intervals import class_intervals, clopper_pearson
from classwise.stats.paired import class_differences, overall_difference
from classwise.stats.power import (
    Population,
    Question,
    draw,
    images_needed,
    images_to_exceed,
    images_to_exclude,
    images_to_exclude_loss,
    least_accuracy,
    power,
    runs_to_exclude,
    shared_images,
)
from classwise.stats.seeds import difference_over_seeds
from tests.refusals import check_refused


def exact_power(images: int, accuracy: float, limit: float) -> float:
    """Probability that the lower end of the exact interval is above the limit."""
    correct = np.arange(images + 1)
    above = clopper_pearson(correct, np.full(images + 1, images)).low > limit
    return float(stats.binom.pmf(correct, images, accuracy)[above].sum())


@pytest.mark.parametrize(("accuracy", "limit"), [(0.3, 0.2), (0.95, 0.9), (0.02, 0.01), (0.6, 0.3)])
def test_the_images_to_exceed_a_limit(accuracy: float, limit: float) -> None:
    images = images_to_exceed(accuracy, limit)
    assert images is not None
    assert exact_power(images, accuracy, limit) >= 0.8 > exact_power(images - 1, accuracy, limit)
    assert all(exact_power(images + more, accuracy, limit) >= 0.795 for more in range(1, 40, 3))


def test_the_images_with_which_all_classes_exceed_a_limit() -> None:
    """Their intervals are independent; equal to the planned power of the worst class."""
    accuracy, limit = [0.8, 0.85, 0.99, 1.0], 0.5
    images = images_to_exceed(accuracy, limit)
    assert images is not None
    exact, before = (np.prod([exact_power(n, one, limit) for one in accuracy]) for n in (images, images - 1))
    assert exact >= 0.8 > before
    planned = power(Question("above", limit), Population(np.array(accuracy)), images=images, repetitions=20_000)
    assert planned == pytest.approx(exact, abs=0.015)


def test_no_images_to_exceed_a_limit() -> None:
    assert images_to_exceed(0.2, 0.2) is None
    assert images_to_exceed(0.2001, 0.2) is None
    assert images_to_exceed(0.9, 0.0) is None


def test_the_least_accuracy_has_the_power() -> None:
    least = least_accuracy(100, 0.2)
    assert exact_power(100, least, 0.2) == pytest.approx(0.8)
    assert np.isnan(least_accuracy(18, 0.9))
    assert least_accuracy(36, 0.9) == pytest.approx(0.8 ** (1 / 36))


def test_one_class_has_the_exact_power() -> None:
    """Of the worst class above a limit, and of a class below one."""
    alone = Population(np.array([0.3]))
    error = 3 * np.sqrt(0.25 / 600)
    assert power(Question("above", 0.2), alone, 100, repetitions=600) == pytest.approx(
        exact_power(100, 0.3, 0.2), abs=error
    )
    assert power(Question("below", 0.4, 0), alone, 100, repetitions=600) == pytest.approx(
        exact_power(100, 0.7, 0.6), abs=error
    )


def test_a_difference_of_independent_models_has_the_power_of_a_z_test() -> None:
    population = Population(np.array([0.4]), np.array([0.6]), shared=0.0)
    found = power(Question("overall-difference"), population, 100, repetitions=100)
    expected = stats.norm.cdf(0.2 / np.sqrt(2 * 0.24 / 100) - stats.norm.ppf(0.975))
    assert found == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_overall_accuracies_are_compared_as_by_compare(seeds: int) -> None:
    """`compare` pairs images, not seeds."""
    population, question = Population(np.array([0.4]), np.array([0.46]), run_sd=0.02), Question("overall-difference")
    for seed in range(20):
        sample = draw(population, np.array([400]), seeds, np.random.default_rng(seed), overall=True)
        assert sample.second is not None
        if seeds > 1:
            of_images = difference_over_seeds(
                sample.second, sample.first, np.zeros_like(sample.labels), 1, 0.05, paired=False
            )
        else:
            pairs = PairedCounts.from_labels(np.zeros_like(sample.labels), sample.second[0], sample.first[0], 1)
            of_images = overall_difference(pairs, 0.05)
        assert question.decided(sample, population, 0.05) == (of_images.low[0] > 0)


def test_a_half_width_is_reached_on_both_sides() -> None:
    """Near 1 the lower side is the longer one; the interval is that of an audit."""
    right = np.arange(121)
    counts = ClassCounts(np.full(121, 120), right)
    low, high = class_intervals(counts, 0.05)
    within = np.maximum(counts.accuracy - low, high - counts.accuracy) <= 0.05
    expected = float(stats.binom.pmf(right, 120, 0.97)[within].sum())
    found = power(Question("half-width", 0.05, 0), Population(np.array([0.97])), 120, repetitions=600)
    assert found == pytest.approx(expected, abs=3 * np.sqrt(0.25 / 600))


@pytest.mark.slow
@pytest.mark.parametrize(
    "question", [Question("above", 0.2), Question("below", 0.45, 0), Question("identity")], ids=lambda asked: asked.kind
)
def test_the_images_needed_have_the_power(question: Question) -> None:
    population = Population(np.array([0.3, *[0.6] * 4]))
    curve = images_needed(question, population, repetitions=1000)
    first, second = curve.needed[0.8], curve.needed[0.9]
    assert first is not None
    assert second is not None
    assert first <= second
    assert list(curve.power) == sorted(curve.power)
    for target, images in curve.needed.items():
        assert images is not None
        assert power(question, population, images, repetitions=1000, seed=1) == pytest.approx(target, abs=0.05)
        assert dict(zip(curve.images, curve.power, strict=True))[images] >= target - 0.02


def test_an_accuracy_that_runs_blur_is_not_reached() -> None:
    """Three runs with a standard deviation of 5 points give no interval of 1 point, whatever the images."""
    curve = images_needed(Question("half-width", 0.01), Population(np.array([0.5]), run_sd=0.05), 3, repetitions=50)
    assert set(curve.needed.values()) == {None}


def test_the_drawn_outcomes_are_as_stated() -> None:
    first, second = np.array([0.3, 0.7]), np.array([0.4, 0.8])
    population = Population(first, second, shared_images(first, second, 0.2), run_sd=0.03)
    images = np.array([20_000, 10_000])
    labels, classes, runs, others = draw(population, images, 2, np.random.default_rng(0))
    assert others is not None
    assert np.bincount(labels).tolist() == images.tolist()
    assert (classes, runs.shape, others.shape) == (2, (2, 30_000), (2, 30_000))
    steady = Population(first, second, population.shared)
    _, _, one, two = draw(steady, images, 1, np.random.default_rng(0))
    assert two is not None
    counts = [ClassCounts.from_labels(labels, side[0], 2).accuracy for side in (one, two)]
    np.testing.assert_allclose(counts, [first, second], atol=0.02)
    assert (one != two).mean() == pytest.approx(0.2, abs=0.02)
    spread = runs.mean(axis=1) - runs.mean()
    assert np.abs(spread).max() > 0.002


def test_larger_test_sets_contain_the_smaller_ones() -> None:
    population = Population(np.array([0.3, 0.6]), np.array([0.4, 0.7]))
    small, large = (draw(population, np.array([images, images]), 2, np.random.default_rng(3)) for images in (50, 80))
    np.testing.assert_array_equal(large.first[:, :100], small.first)


def test_the_images_to_exclude_zero() -> None:
    """The distance to the end falls with 1/sqrt(n); half of it to spare for a power of 80 %."""
    images = images_to_exclude(100, 0.1, 0.1)
    assert images is not None
    z, more = stats.norm.ppf(0.975), stats.norm.ppf(0.8)
    assert images == pytest.approx(100 * ((z + more) / z) ** 2, rel=0.05)
    assert images_to_exclude(100, -0.1, 0.2) == pytest.approx(4 * images, rel=0.05)
    check_refused("no number of images excludes 0", images_to_exclude, 100, 0.0, 0.1)


@pytest.mark.parametrize(("different", "loss", "classes"), [(0.0, 0.1, 10), (0.05, 0.05, 1), (0.2, 0.1, 4)])
def test_the_images_to_exclude_a_loss_have_the_power(different: float, loss: float, classes: int) -> None:
    """Of unchanged models, simulated with other random numbers and compared as audits are."""
    number = images_to_exclude_loss(different, loss, classes)
    assert number is not None
    rng = np.random.default_rng(1)

    def power(images: int) -> float:
        changes = rng.binomial(images, different, (200, classes))
        gains = rng.binomial(changes, 0.5)
        equal = images - changes
        cells = map(PairedCounts, equal // 2, gains, changes - gains, equal - equal // 2)
        return float(np.mean([(class_differences(one).low >= -loss).all() for one in cells]))

    assert power(number) >= 0.75
    assert power(int(0.7 * number)) < 0.75
    assert images_to_exclude_loss(0.5, 1e-4) is None


def test_what_others_cause_is_not_reduced() -> None:
    """With as many images or runs as named, the two parts add in quadrature to what leaves a power of 80 %."""
    room = 0.1 * stats.norm.ppf(0.975) / (stats.norm.ppf(0.975) + stats.norm.ppf(0.8))
    images = images_to_exclude(100, 0.1, 0.2, fixed=0.05)
    assert images is not None
    assert math.hypot(0.05, math.sqrt(0.2**2 - 0.05**2) * math.sqrt(100 / images)) == pytest.approx(room, rel=0.02)
    assert images_to_exclude(100, 0.1, 0.2, fixed=1.01 * room) is None
    few, many = runs_to_exclude(2, 0.1, 0.5), runs_to_exclude(2, 0.1, 0.5, fixed=0.9 * room)
    assert few is not None
    assert many is None or few < many
    assert runs_to_exclude(2, 0.1, 0.5, fixed=1.01 * room) is None


def test_the_runs_to_exclude_zero() -> None:
    few, many = runs_to_exclude(2, 0.05, 0.2), runs_to_exclude(3, 0.05, 0.2)
    assert few is not None
    assert many is not None
    assert 2 < few < many
    assert runs_to_exclude(5, 0.001, 0.2) is None
