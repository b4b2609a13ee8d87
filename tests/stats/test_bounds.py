"""Bounds of metrics of incomplete counts, checked against every completion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.stats import metrics
from classwise.stats.bounds import BoundedCounts, Bounds
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import clopper_pearson, proportion_interval
from classwise.stats.registry import MetricInputs, all_metrics

from .exact import EXACT

TIGHT = ("overall", "macro", "worst", "worst20", "nrr", "hmw", "overall.low", "overall.high", "worst.low", "worst.high")
"""Metrics whose bounds are attained if no image is unplaced (nrr: with complete clean counts)."""


def upper(counts: ClassCounts) -> float:
    """Level of the upper bounds of the classes, which are correct simultaneously with probability 0.975."""
    return float(2 * (1 - 0.975 ** (1 / np.count_nonzero(counts.count))))


INTERVAL_ENDS: dict[str, Callable[[ClassCounts], float]] = {
    "overall.low": lambda counts: float(proportion_interval(counts.correct.sum(), counts.count.sum()).low),
    "overall.high": lambda counts: float(proportion_interval(counts.correct.sum(), counts.count.sum()).high),
    "worst.low": lambda counts: float(np.nanmin(clopper_pearson(counts.correct, counts.count).low)),
    "worst.high": lambda counts: float(np.nanmin(clopper_pearson(counts.correct, counts.count, upper(counts)).high)),
}


def bounds(measure: str, counts: BoundedCounts, clean: BoundedCounts | None = None) -> Bounds[Fraction] | Bounds[float]:
    """Bounds of a metric, or of an end of its interval."""
    name, _, end = measure.partition(".")
    metric = all_metrics()[name]
    return metric.ends[end](counts, 0.05) if end else metric.possible(MetricInputs(counts, clean))


def value(measure: str, counts: ClassCounts, clean: ClassCounts) -> Fraction | float:
    """The metric of complete counts, computed without bounds."""
    return EXACT[measure](counts, clean) if measure in EXACT else INTERVAL_ENDS[measure](counts)


@st.composite
def bounded(draw: st.DrawFn) -> BoundedCounts:
    """Counts of up to three classes with a few images that are not evaluated."""
    rows = draw(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=3).filter(
            lambda rows: any(a + b + c for a, b, c in rows)
        )
    )
    correct, wrong, unjudged = np.array(rows, dtype=np.int64).T
    return BoundedCounts(correct + wrong + unjudged, correct + wrong, correct)


def completions(counts: BoundedCounts) -> list[ClassCounts]:
    """Every completion of the counts: the images that are not evaluated are correct or misclassified."""
    remaining = (counts.count - counts.judged).tolist()
    added = itertools.product(*(range(more + 1) for more in remaining))
    return [ClassCounts(counts.count, counts.correct + np.array(correct)) for correct in added]


def with_unplaced(counts: BoundedCounts) -> list[ClassCounts]:
    """Every completion of counts whose unplaced images may be of any class."""
    classes, complete = len(counts.count), []
    for labels in itertools.combinations_with_replacement(range(classes), int(counts.unplaced)):
        more = np.bincount(np.array(labels, dtype=np.int64), minlength=classes)
        complete += completions(BoundedCounts(counts.count + more, counts.judged, counts.correct))
    return complete


@settings(max_examples=25, deadline=None)
@given(bounded())
def test_bounds_hold_for_every_completion_and_are_attained(counts: BoundedCounts) -> None:
    every, clean = completions(counts), ClassCounts(counts.count, counts.count)
    known = BoundedCounts(counts.count, counts.count, counts.count)
    # The split estimate has no bounds, and a value only if every image is evaluated.
    assert math.isnan(bounds("worst.split", counts).low) or len(every) == 1
    for name in (*EXACT, *INTERVAL_ENDS):
        low, high = bounds(name, counts, known)
        found = [value(name, completion, clean) for completion in every]
        assert low <= min(found), name
        assert max(found) <= high, name
        if name in TIGHT:
            assert (low, high) == (min(found), max(found)), name
        if name == "mcd":
            assert high == max(found)
        if len(every) == 1:
            assert low == high == found[0], name
        assert isinstance(low, Fraction) == (name in EXACT)


@settings(max_examples=10, deadline=None)
@given(bounded(), st.integers(1, 2))
def test_bounds_hold_for_every_class_of_unplaced_images(counts: BoundedCounts, unplaced: int) -> None:
    counts = BoundedCounts(counts.count, counts.judged, counts.correct, float(unplaced))
    for name in {*EXACT, *INTERVAL_ENDS} - {"nrr"}:
        low, high = bounds(name, counts, counts)
        for completion in with_unplaced(counts):
            assert low <= value(name, completion, completion) <= high, name


def test_with_an_unknown_number_of_images_the_bounds_are_trivial() -> None:
    counts = BoundedCounts(np.array([5, 5]), np.array([5, 5]), np.array([5, 0]), math.inf)
    for name in ("overall", "worst", "worst20", "macro", "mcd", "hmw", "overall.low", "worst.high"):
        assert bounds(name, counts) == (0.0, 1.0), name


def test_variance_bounds_are_near_the_truth() -> None:
    """Two complete classes and one that is not evaluated: the extreme variances are at its ends or between them."""
    counts = BoundedCounts(np.array([100, 100, 100]), np.array([100, 100, 0]), np.array([20, 40, 0]))
    found = [metrics.class_variance(completion.accuracy) for completion in completions(counts)]
    low, high = bounds("cv", counts)
    assert low == pytest.approx(min(found), abs=1e-6)
    assert max(found) <= high <= 1.5 * max(found)


@settings(max_examples=50, deadline=None)
@given(bounded())
def test_variance_bounds_are_those_of_a_grid(counts: BoundedCounts) -> None:
    """The extremes over t of the mean square distances to the nearest and to the farther ends, by search."""
    low, high = (ends[counts.count > 0] for ends in counts.accuracy)
    grid = np.concatenate([np.linspace(0, 1, 2001), (low + high) / 2])[:, None]  # the second has a kink halfway
    least = ((np.clip(grid, low, high) - grid) ** 2).mean(axis=1).min()
    most = (np.maximum(np.abs(grid - low), np.abs(grid - high)) ** 2).mean(axis=1).min()
    assert bounds("cv", counts) == pytest.approx((least, most), abs=1e-6)
