"""Contracts of every registered metric, also of those of installed packages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.stats import OWN_METRICS
from classwise.stats.bounds import BoundedCounts
from classwise.stats.confusion import confusion
from classwise.stats.counts import ClassCounts, IntArray
from classwise.stats.registry import Metric, MetricInputs, all_metrics, arranged, metric
from tests.refusals import check_refused

from .exact import EXACT, EXACT_OF_CONFUSION

NAMES = list(all_metrics())


def inputs(labels: IntArray, predictions: IntArray, clean: IntArray, classes: int) -> MetricInputs:
    """Complete inputs of a metric, from predictions under an attack and without it."""
    correct = {"correct": predictions == labels, "clean": clean == labels}
    frame = pd.DataFrame({"index": np.arange(len(labels)), "label": labels, "group": labels, "prediction": predictions})
    under, without = (BoundedCounts.of(ClassCounts.from_labels(labels, right, classes)) for right in correct.values())
    return MetricInputs(
        under, without, lambda: confusion(labels, predictions, classes), lambda: frame.assign(**correct)
    )


def drawn(seed: int, images: int = 60, classes: int = 4) -> MetricInputs:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, images)
    predictions = np.where(generator.random(images) < 0.6, labels, generator.integers(0, classes, images))
    clean = np.where(generator.random(images) < 0.9, labels, predictions)
    return inputs(labels, predictions, clean, classes)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_within_its_interval(name: str) -> None:
    found = all_metrics()[name]
    for seed in range(3):
        value, low, high = found.estimate(drawn(seed, 240))
        assert value == found.value(drawn(seed, 240))
        assert found.estimate(drawn(seed, 240)) == pytest.approx((value, low, high), abs=0, rel=0, nan_ok=True)
        if found.interval is None and np.isnan([low, high]).all():  # the images cannot tell
            continue
        assert low <= value <= high
        assert low < high
        assert found.unit == "number" or -1e-12 <= low <= high <= 1 + 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_exact_values_equal_the_value_and_are_fractions_if_the_metric_is_rational(name: str) -> None:
    found = all_metrics()[name]
    low, high = found.possible(drawn(0))
    assert low == high
    assert isinstance(low, Fraction) == found.rational
    assert float(low) == pytest.approx(found.value(drawn(0)), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 2)), min_size=1, max_size=3))
def test_bounds_hold_for_every_completion_or_are_unknown(name: str, rows: list[tuple[int, int, int]]) -> None:
    correct, wrong, unjudged = np.array([*rows, (1, 1, 1)]).T
    count, found = correct + wrong + unjudged, all_metrics()[name]
    clean = BoundedCounts.of(ClassCounts(count, count))
    low, high = found.possible(MetricInputs(BoundedCounts(count, correct + wrong, correct), clean))
    if found.bounds is None:
        assert math.isnan(low)
        assert math.isnan(high)
        return
    for more in itertools.product(*(range(number + 1) for number in unjudged)):
        complete = BoundedCounts.of(ClassCounts(count, correct + np.array(more)))
        assert low <= found.possible(MetricInputs(complete, clean)).low <= high


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_has_no_value_of_incomplete_or_unknown_inputs(name: str) -> None:
    found = all_metrics()[name]
    half = BoundedCounts(np.array([4, 4]), np.array([4, 3]), np.array([2, 1]))
    bare = MetricInputs(BoundedCounts.of(half.low))
    assert math.isnan(found.value(MetricInputs(half, half)))
    assert all(map(math.isnan, found.estimate(MetricInputs(half, half))))
    assert bare.lacks(found.reads) == math.isnan(found.value(bare)) == math.isnan(found.possible(bare).low)
    assert found.title
    assert found.about


def test_the_own_metrics_have_independent_definitions() -> None:
    assert tuple(NAMES[: len(OWN_METRICS)]) == OWN_METRICS == (*EXACT, *EXACT_OF_CONFUSION)
    assert all(all_metrics()[name].rational for name in EXACT)


@pytest.mark.parametrize("name", EXACT_OF_CONFUSION)
@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=4, max_size=4))
def test_metrics_of_confusions_equal_their_definitions(name: str, matrix: list[list[int]]) -> None:
    """Also with absent classes; the definitions need two classes with images, and an error."""
    found, counts = all_metrics()[name], np.array(matrix)
    value = found(counts)
    try:
        assert value == pytest.approx(float(EXACT_OF_CONFUSION[name](matrix)))
    except (ValueError, ZeroDivisionError):
        assert math.isnan(value)
        assert found.interval is not None
        assert all(map(math.isnan, found.interval(counts)))


def test_tables_have_every_metric_that_they_do_not_leave_out() -> None:
    names = [metric.name for metric in arranged("worst", "cv", without=("macro", "nrr"))]
    assert names[:2] == ["worst", "cv"]
    assert sorted(names) == sorted(set(NAMES) - {"macro", "nrr"})


@pytest.mark.slow
def test_a_metric_without_an_interval_has_that_of_a_function_of_rates() -> None:
    """The accuracy as a metric of each kind of input: somewhat wider than the interval of a proportion."""
    kinds: dict[str, Callable[..., Any]] = {
        "counts": lambda counts: counts.correct.sum() / counts.count.sum(),
        "confusion": lambda matrix: np.trace(matrix) / matrix.sum(),
        "outcomes": lambda outcomes: outcomes["correct"].mean(),
        "clean and counts": lambda clean, counts: counts.correct.sum() / clean.count.sum(),
    }
    value, low, high = all_metrics()["overall"].estimate(drawn(5, 400))
    for reads, function in kinds.items():
        found = metric(name="accuracy", reads=reads)(function).estimate(drawn(5, 400))
        assert found.value == pytest.approx(value), reads
        assert 1 <= (found.high - found.low) / (high - low) < 1.5, reads
        assert found.high - found.value == pytest.approx(found.value - found.low), reads


@pytest.mark.parametrize(
    ("reads", "images", "function"),
    [
        ("counts", 100, lambda counts: float(np.median(counts.accuracy))),  # 25 images a class
        ("counts", 400, lambda counts: float(counts.correct.sum())),  # no function of the accuracies
        ("counts", 400, lambda counts: float((counts.accuracy > 0.5).mean())),  # steps
        ("outcomes", 100, lambda outcomes: outcomes["correct"].mean()),
        ("outcomes", 400, lambda outcomes: float(outcomes["correct"].mean() > 0.5)),
        ("outcomes", 400, lambda outcomes: np.ptp(outcomes.groupby("group")["index"].count() % 7) * 1.0),
    ],
)
def test_a_metric_has_no_interval_where_none_is_valid(reads: str, images: int, function: Callable[..., Any]) -> None:
    value, low, high = metric(name="mine", reads=reads)(function).estimate(drawn(5, images))
    assert value == metric(name="mine", reads=reads)(function).value(drawn(5, images))
    assert math.isnan(low)
    assert math.isnan(high)


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", [0.02, 0.5])
def test_the_interval_of_a_minimum_over_tied_classes_covers_it(accuracy: float) -> None:
    """That of independent posteriors covers in none of these samples."""
    lowest = metric(name="lowest")(lambda counts: counts.accuracy.min())
    rng, images = np.random.default_rng(0), np.full(100, 100)
    for _ in range(10):
        counts = ClassCounts(images, rng.binomial(images, accuracy))
        value, low, high = lowest.estimate(MetricInputs(BoundedCounts.of(counts)))
        assert low <= value < accuracy <= high < accuracy + 0.3


@pytest.mark.parametrize(
    ("about", "returned", "message"),
    [
        ({"reads": "logits"}, 0.5, "unknown reads of metric 'mine': 'logits'"),
        ({"unit": "percent"}, 0.5, "unknown unit of metric 'mine': 'percent'"),
        ({"colour": "red"}, 0.5, "a metric has no field 'colour'"),
        ({"name": "low"}, 0.5, "metric 'low': the name must be letters, digits and _, and not n,"),
        ({"reads": "confusion", "bounds": len}, 0.5, "metric 'mine': bounds are computed from counts"),
        ({"rational": True}, 0.5, "metric 'mine' is rational, but returned a float; return a Fraction"),
        ({}, "half", "metric 'mine' returned a str; return a number"),
    ],
)
def test_a_metric_that_cannot_be_used_is_refused(about: dict[str, object], returned: object, message: str) -> None:
    def made() -> Metric:
        return metric(**({"name": "mine"} | about))(lambda counts: returned)

    check_refused(message, lambda: made().value(drawn(0)))
