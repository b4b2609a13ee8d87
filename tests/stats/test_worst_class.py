from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import clopper_pearson
from classwise.stats.metrics.lowest import minimum
from classwise.stats.worst_class import (
    _is_significant,
    above_any,
    possibly_best,
    possibly_worst,
    significantly_above,
)
from tests.refusals import check_refused
from tests.stats.strategies import some_counts


def _possibly_worst_by_the_book(counts: ClassCounts, alpha: float) -> list[bool]:
    """The definition, pair by pair, with scipy's Fisher test."""
    present = [c for c in range(counts.num_classes) if counts.count[c]]
    level = alpha / max(len(present) - 1, 1)
    kept = [c in present for c in range(counts.num_classes)]
    for c, k in itertools.permutations(present, 2):
        a, n, b, m = (int(x) for x in (counts.correct[c], counts.count[c], counts.correct[k], counts.count[k]))
        p = stats.fisher_exact(np.array([[a, n - a], [b, m - b]]), alternative="greater")[1]
        assume(abs(p / level - 1) > 1e-9)  # which rounding decides
        kept[c] &= not p < level
    return kept


@given(some_counts(max_classes=5), st.sampled_from([0.05, 0.3]))
def test_possibly_worst_is_the_definition(counts: ClassCounts, alpha: float) -> None:
    assert possibly_worst(counts, alpha).tolist() == _possibly_worst_by_the_book(counts, alpha)


def test_fishers_test_is_that_of_the_hypergeometric_distribution() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(1, 3000, (2, 2000))
    right = np.stack([images[0] - rng.integers(0, 40, 2000), rng.integers(0, 40, 2000)]).clip(0, images)
    right[:, ::2] = rng.integers(0, images[:, ::2] + 1)
    right = right[:, above := right[0] / images[0] > right[1] / images[1]]
    images = images[:, above]
    cells = (right[0], images[0] - right[0], right[1], images[1] - right[1])
    expected = stats.hypergeom.sf(right[0] - 1, images.sum(0), right.sum(0), images[0])
    floats = [cell.astype(np.float64) for cell in cells]
    for level in (0.3, 0.05, 0.001, 1e-6):
        found = _is_significant(floats[0], floats[1], floats[2], floats[3], level)
        clear = np.abs(expected / level - 1) > 1e-9
        assert clear.any()
        assert 0 < found.sum() < len(found)
        np.testing.assert_array_equal(found[clear], expected[clear] < level)


def test_the_worst_class_is_excluded_at_most_at_the_level_with_many_small_classes() -> None:
    """Class 0 is one of 200 that tie at 90 %; a normal test excludes it in a fifth of the samples."""
    rng, images = np.random.default_rng(0), np.append(10_000, np.full(199, 50))
    excluded = [not possibly_worst(ClassCounts(images, rng.binomial(images, 0.9)))[0] for _ in range(100)]
    assert np.mean(excluded) <= 0.07


@given(some_counts(), st.sampled_from((0.05, 0.2)))
def test_above_any_agrees_with_the_table_of_pairs(counts: ClassCounts, alpha: float) -> None:
    present = np.flatnonzero(counts.present).tolist()
    above = significantly_above(counts, alpha)
    for others in (present[:1], present[::2], present):
        assert above_any(counts, present, others, alpha).tolist() == [bool(above[c, others].any()) for c in present]


def test_possibly_worst_by_hand() -> None:
    """Of 1000 images each: 253 against 291 has p = 0.032, against 367 p = 2e-8; the level is 0.05/2."""
    assert stats.fisher_exact(np.array([[291, 709], [253, 747]]), alternative="greater")[1] == pytest.approx(
        0.032, abs=0.001
    )
    counts = ClassCounts(np.full(3, 1000), np.array([253, 291, 367]))
    assert possibly_worst(counts).tolist() == [True, True, False]
    assert possibly_best(counts).tolist() == [False, False, True]


@given(some_counts(), st.integers(0, 10**6))
def test_the_lowest_stays_and_the_order_is_immaterial(counts: ClassCounts, seed: int) -> None:
    kept = possibly_worst(counts)
    assert kept[np.nanargmin(counts.accuracy)]
    assert not kept[~counts.present].any()
    order = np.random.default_rng(seed).permutation(counts.num_classes)
    moved = possibly_worst(ClassCounts(counts.count[order], counts.correct[order]))
    np.testing.assert_array_equal(moved, kept[order])


def test_a_single_class_is_the_worst() -> None:
    assert possibly_worst(ClassCounts(np.array([0, 9]), np.array([0, 9]))).tolist() == [False, True]


def test_minimum_interval_is_the_minimum_of_the_bounds() -> None:
    counts = ClassCounts(np.array([1000, 50, 1000]), np.array([260, 14, 500]))
    low = clopper_pearson(counts.correct, counts.count).low
    high = clopper_pearson(counts.correct, counts.count, 2 * (1 - 0.975 ** (1 / 3))).high
    found = minimum(counts)
    assert (found.label, found.plug_in) == (0, 0.26)
    # The small class has the lowest lower bound, the large one the lowest upper bound.
    assert (found.low, found.high) == pytest.approx((low[1], high[0]), abs=1e-12)


@pytest.mark.parametrize("true", [np.full(6, 0.4), np.array([0.30, 0.33, 0.36, 0.6, 0.7, 0.8])])
def test_plug_in_and_split_bracket_the_truth(true: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    count = np.full(6, 150)
    found = [minimum(ClassCounts(count, rng.binomial(count, true)), seed=i) for i in range(300)]
    plug_in, split = np.array([f.plug_in for f in found]), np.array([f.split for f in found])
    error = split.std() / math.sqrt(len(found))
    assert plug_in.mean() < true.min() - 3 * error
    # At an exact tie every selection has the true accuracy; otherwise selection on half the images is biased up.
    assert split.mean() > true.min() - 3 * error
    assert np.mean([f.low <= true.min() <= f.high for f in found]) >= 0.95


def test_split_of_one_class_is_its_accuracy_and_of_clear_classes_the_lowest() -> None:
    one = minimum(ClassCounts(np.array([200]), np.array([37])))
    assert one.split == pytest.approx(37 / 200)
    clear = minimum(ClassCounts(np.array([200, 200]), np.array([37, 190])))
    assert clear.split == pytest.approx(37 / 200)


def test_split_agrees_with_splitting_the_images() -> None:
    """The reference halves the images themselves; both are means over many random halvings of the same counts."""
    rng = np.random.default_rng(2)
    images = [rng.random(40) < p for p in (0.4, 0.45, 0.5)]
    counts = ClassCounts(np.full(3, 40), np.array([x.sum() for x in images]))
    scores = []
    for _ in range(2000):
        halves = [rng.permutation(x).reshape(2, 20).mean(axis=1) for x in images]
        for choose, score in ((0, 1), (1, 0)):
            lowest = min(h[choose] for h in halves)
            scores.append(np.mean([h[score] for h in halves if h[choose] == lowest]))
    assert minimum(counts, splits=4000).split == pytest.approx(np.mean(scores), abs=0.003)


@given(some_counts(), st.integers(0, 100))
def test_minimum_is_seeded_and_bounded(counts: ClassCounts, seed: int) -> None:
    found = minimum(counts, seed=seed)
    np.testing.assert_equal(minimum(counts, seed=seed), found)
    assert 0 <= found.low <= found.plug_in <= found.high <= 1
    assert math.isnan(found.split) == (counts.count < 2).all()


def test_the_test_is_exact() -> None:
    """At 4 against 12 of 100 wrong, z = 2.08 would exclude the class; Fisher's p = 0.033 does not at level 0.025."""
    assert (0.96 - 0.88) / math.sqrt(0.92 * 0.08 * 2 / 100) > stats.norm.ppf(0.975)
    few = ClassCounts(np.array([100, 100, 100]), np.array([88, 96, 88]))
    assert stats.fisher_exact(np.array([[96, 4], [88, 12]]), alternative="greater")[1] == pytest.approx(0.033, abs=5e-4)
    assert possibly_worst(few).all()
    assert possibly_worst(ClassCounts(few.count, np.array([86, 97, 86]))).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minimum(ClassCounts.zeros(3)), "no class has an image"),
        (lambda: minimum(ClassCounts(np.array([2]), np.array([1])), splits=0), "splits = 0"),
        (lambda: possibly_worst(ClassCounts(np.array([2]), np.array([1])), 0), "alpha"),
    ],
)
def test_invalid_arguments(call: Callable[[], object], message: str) -> None:
    check_refused(message, call)
