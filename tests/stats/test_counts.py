from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import ClassCounts, PairedCounts, whole_numbers
from tests.stats.strategies import class_counts

LABELS = np.array([0, 0, 0, 2, 2])
RIGHT = np.array([True, False, True, False, False])


def test_counts_by_hand() -> None:
    counts = ClassCounts.from_labels(LABELS, RIGHT, 4)
    assert counts.count.tolist() == [3, 0, 2, 0]
    assert counts.correct.tolist() == [2, 0, 0, 0]
    assert counts.wrong.tolist() == [1, 0, 2, 0]
    assert counts.present.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(counts.accuracy, [2 / 3, np.nan, 0, np.nan])


def test_tensors_and_integer_outcomes_are_accepted() -> None:
    assert ClassCounts.from_labels(torch.tensor(LABELS), torch.tensor(RIGHT), 4) == ClassCounts.from_labels(
        LABELS.tolist(), RIGHT.astype(int), 4
    )


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=60),
    st.integers(0, 60),
    st.randoms(use_true_random=False),
)
def test_parts_add_up_and_order_is_immaterial(images: list[tuple[int, bool]], cut: int, random: object) -> None:
    labels, right = np.array([c for c, _ in images]), np.array([r for _, r in images])
    whole = ClassCounts.from_labels(labels, right, 5)
    parts = [ClassCounts.from_labels(labels[part], right[part], 5) for part in (slice(cut), slice(cut, None))]
    assert sum(parts, start=ClassCounts.zeros(5)) == whole
    shuffled = np.random.default_rng(cut).permutation(len(labels))
    assert ClassCounts.from_labels(labels[shuffled], right[shuffled], 5) == whole


@given(class_counts())
def test_counts_can_be_pickled(counts: ClassCounts) -> None:
    assert pickle.loads(pickle.dumps(counts)) == counts


def test_counts_are_immutable() -> None:
    count = np.array([3, 4])
    counts = ClassCounts(count, np.array([1, 2]))
    count[0] = 0
    assert counts.count.tolist() == [3, 4]
    with pytest.raises(ValueError, match="read-only"):
        counts.count[0] = 0


def test_equality() -> None:
    assert ClassCounts.zeros(3) != ClassCounts.zeros(4)
    assert ClassCounts.zeros(3) != "zeros"
    with pytest.raises(TypeError):
        ClassCounts.zeros(3) + 1  # type: ignore[operator]


def test_pairs_by_hand() -> None:
    labels = [0, 0, 0, 0, 1, 1]
    pairs = PairedCounts.from_labels(labels, [1, 1, 0, 0, 1, 1], [1, 0, 1, 0, 0, 0], 3)
    assert [cells.tolist() for cells in (pairs.both, pairs.only_first, pairs.only_second, pairs.neither)] == [
        [1, 0, 0],
        [1, 2, 0],
        [1, 0, 0],
        [1, 0, 0],
    ]
    assert pairs.count.tolist() == [4, 2, 0]
    assert pairs.first == ClassCounts.from_labels(labels, [1, 1, 0, 0, 1, 1], 3)
    assert pairs.second == ClassCounts.from_labels(labels, [1, 0, 1, 0, 0, 0], 3)
    np.testing.assert_array_equal(pairs.difference, [0, 1, np.nan])
    assert (pairs + pairs).count.tolist() == [8, 4, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassCounts.from_labels([0, 3], [1, 1], 3), r"labels: 3 is not one of the 3 classes 0 \.\. 2"),
        (lambda: ClassCounts.from_labels([0, -1], [1, 1], 3), "labels: -1 is not one"),
        (lambda: ClassCounts.from_labels([0.0, 1.0], [1, 1], 3), "labels: expected integers"),
        (lambda: whole_numbers(["cat"], "labels"), "labels: .* replace class names by their numbers"),
        (lambda: whole_numbers(np.array(["cat"], object), "labels"), "labels: 'cat' is not an integer; replace class"),
        (lambda: ClassCounts.from_labels([[0, 1]], [1, 1], 3), r"shape \(1, 2\)"),
        (lambda: ClassCounts.from_labels([0, 1], [1], 3), "each of the 2 labels"),
        (lambda: ClassCounts.from_labels([0, 1], [[1, 0]], 3), r"expected shape \(2,\)"),
        (lambda: ClassCounts.from_labels([0, 1], [0.2, 0.9], 3), "expected a boolean for each image"),
        (lambda: ClassCounts(np.array([1, 2]), np.array([1])), "expected equal lengths"),
        (lambda: ClassCounts(np.array([1, 2]), np.array([1, 3])), "class 1: 3 of 2 images correct"),
        (lambda: ClassCounts(np.array([1, 2]), np.array([1, -3])), "-3 is negative"),
        (lambda: ClassCounts.zeros(2) + ClassCounts.zeros(3), "2 and of 3 classes"),
        (lambda: PairedCounts.from_labels([0, 1], [1, 0], [[1, 0]], 2), r"expected shape \(2,\)"),
    ],
)
def test_invalid_counts(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ClasswiseError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
