"""Bootstrap intervals against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from classwise.papers.interval_estimators import Resampled
from classwise.stats.counts import BoolArray, FloatArray
from tests.refusals import check_refused

LABELS = np.repeat(np.arange(4), 100)
RANDOM = np.random.default_rng(0)
CORRECT = RANDOM.random((2, 400)) < np.array([0.8, 0.5, 0.6, 0.3])[LABELS]


def mean(accuracy: FloatArray) -> FloatArray:
    return np.asarray(accuracy[..., 0, :].mean(axis=-1))


def gain(accuracy: FloatArray) -> FloatArray:
    return np.asarray((accuracy[..., 0, :] - accuracy[..., 1, :]).mean(axis=-1))


def test_accuracies() -> None:
    images = Resampled(CORRECT, LABELS, 4)
    assert images.accuracy == pytest.approx(np.stack([row.reshape(4, 100).mean(axis=1) for row in CORRECT]))
    assert images.resampled.mean(axis=0) == pytest.approx(images.accuracy, abs=0.01)


@pytest.mark.parametrize("level", [0.05, 0.005])
def test_the_mean_has_its_textbook_interval(level: float) -> None:
    images = Resampled(CORRECT, LABELS, 4, resamples=4000)
    a = images.accuracy[0]
    error = math.sqrt(float((a * (1 - a) / 100).sum())) / 4
    z = {0.05: 1.960, 0.005: 2.807}[level]
    found = images.estimate(mean, level)
    assert found.value == pytest.approx(a.mean())
    assert found.high - found.value == pytest.approx(z * error, rel=0.1)


def test_rows_are_paired() -> None:
    """Two rows that differ in 100 of 400 images: only the discordant images contribute to the error."""
    second = CORRECT[0] ^ (np.arange(400) % 4 == 0)
    images = Resampled(np.stack([CORRECT[0], second]), LABELS, 4)
    d = CORRECT[0].astype(float) - second
    error = math.sqrt(sum(d[c == LABELS].var() / 100 for c in range(4))) / 4
    found = images.estimate(gain)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.07)


def test_equal_rows_allow_for_three_discordant_images() -> None:
    """After 400 images without a difference, a share of 0.9 % is refuted at 2.5 %: the rule of three."""
    found = Resampled(np.ones((2, 400), bool), LABELS, 4).estimate(gain)
    assert found.value == 0
    assert found.high == pytest.approx(-found.low)
    assert 0.005 < found.high < 0.01


def lowest(accuracy: FloatArray) -> FloatArray:
    return np.asarray(accuracy.min(axis=(-1, -2)))


def test_without_variance_the_interval_of_a_minimum_allows_for_one_image() -> None:
    assert Resampled(np.ones((2, 400), bool), LABELS, 4).estimate(lowest) == pytest.approx((1, 0.99, 1.01))


def test_a_class_with_one_image_has_an_interval_of_the_mean_only() -> None:
    right = np.c_[CORRECT, [True, False]]
    images = Resampled(right, np.r_[LABELS, 4], 5)
    assert math.isnan(images.estimate(lowest).low)
    assert Resampled(right[:, -1:], [0], 1).estimate(mean) == pytest.approx((1, 0.025, 1))
    found = images.estimate(mean)
    assert found.high - found.low > 0.95 / 5  # the single image alone


@pytest.mark.parametrize(
    ("right", "classes", "message"), [(CORRECT, 5, "class 4 has no image"), (CORRECT[0], 4, "rows, images")]
)
def test_bad_input(right: BoolArray, classes: int, message: str) -> None:
    check_refused(message, Resampled, right, LABELS, classes)
