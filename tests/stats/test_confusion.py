from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import confusion_matrix

from classwise.stats.confusion import (
    confusion,
    confusion_rates,
    misclassified,
    superclass_leakage,
    symmetry,
)
from classwise.stats.metrics.asymmetry import asymmetry_penalty, max_asymmetry
from classwise.stats.metrics.targets import target_shares
from tests.refusals import check_refused

# kdd21 Table 4, line 4: the 1000 attacked cats of CIFAR-10; and the superclasses of Table 2 (0: vehicles, 1: animals).
CATS = np.array([34, 16, 82, 262, 113, 254, 139, 53, 14, 33])
SUPERCLASSES = np.array([0, 0, 1, 1, 1, 1, 1, 1, 0, 0])

matrices = hnp.arrays(np.int64, st.integers(2, 6).map(lambda c: (c, c)), elements=st.integers(0, 50))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=50))
def test_confusion_is_sklearns(images: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(images).T
    ours = confusion(labels, predictions, 5)
    np.testing.assert_array_equal(ours, confusion_matrix(labels, predictions, labels=range(5)))


def test_rates_and_masked_diagonal() -> None:
    matrix = [[3, 1, 0], [0, 0, 0], [2, 2, 4]]
    np.testing.assert_array_equal(confusion_rates(matrix), [[0.75, 0.25, 0], [np.nan] * 3, [0.25, 0.25, 0.5]])
    np.testing.assert_array_equal(misclassified(matrix), [[np.nan, 1, 0], [0, np.nan, 0], [2, 2, np.nan]])


def test_leakage_of_the_papers_cats() -> None:
    matrix = np.zeros((10, 10))
    matrix[3] = CATS
    inside, chance = superclass_leakage(matrix, SUPERCLASSES)
    assert inside == (82 + 113 + 254 + 139 + 53) / 738
    assert chance == pytest.approx(5 / 9)


def test_leakage_at_chance() -> None:
    """Errors distributed uniformly over the other classes give exactly the chance level, for any superclasses."""
    errors = np.repeat(np.arange(1, 8)[:, None], 7, axis=1)
    inside, chance = superclass_leakage(errors, [0, 0, 0, 1, 1, 2, 3])
    assert inside == pytest.approx(chance)


def test_leakage_extremes() -> None:
    matrix = np.array([[5, 2, 0], [3, 1, 0], [0, 0, 9]])
    assert superclass_leakage(matrix, [7, 7, 8]).inside == 1
    assert superclass_leakage(matrix, [0, 1, 2]) == (0, 0)
    assert np.isnan(superclass_leakage(np.eye(3), [7, 7, 8])).all()


def test_symmetry_by_hand() -> None:
    pearson, overlap = symmetry([[9, 1, 2], [2, 9, 4], [3, 7, 9]])
    above, below = [1, 2, 4], [2, 3, 7]
    assert pearson == pytest.approx(np.corrcoef(above, below)[0, 1])
    assert overlap == pytest.approx(1 - 2 * (1 + 1 + 3) / (2 * 19))


@given(matrices)
def test_symmetry_is_bounded_and_invariant_to_the_diagonal_and_to_transposing(matrix: np.ndarray) -> None:
    pearson, overlap = symmetry(matrix)
    assert np.isnan(pearson) or -1 - 1e-9 <= pearson <= 1 + 1e-9
    assert np.isnan(overlap) or 0 <= overlap <= 1
    np.testing.assert_allclose(symmetry(matrix.T), (pearson, overlap))
    np.testing.assert_allclose(symmetry(matrix + 7 * np.eye(len(matrix))), (pearson, overlap))


def test_symmetry_of_symmetric_one_sided_and_empty() -> None:
    lower = np.array([[0, 0, 0], [1, 0, 0], [2, 3, 0]])
    np.testing.assert_allclose(symmetry(lower + lower.T), (1, 1))
    assert symmetry(lower).overlap == 0
    assert np.isnan(symmetry(np.zeros((3, 3)))).all()


def test_symmetry_excludes_absent_classes() -> None:
    rates = confusion_rates([[9, 1, 2, 4], [2, 9, 4, 4], [3, 7, 9, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(symmetry(rates), symmetry(rates[:3, :3]))


def test_asymmetry_by_hand() -> None:
    """Rates 0.3 and 0.1, 0 and 0 (class 3 is absent), 0.1 and 0.5; errors 1, 8, 1 of 10."""
    matrix = [[7, 3, 0, 0], [1, 8, 1, 0], [0, 5, 5, 0], [0, 0, 0, 0]]
    label, predicted, gap = max_asymmetry(matrix)
    assert (label, predicted) == (2, 1)
    assert gap == pytest.approx(0.4)
    np.testing.assert_allclose(target_shares(matrix), [0.1, 0.8, 0.1, 0])
    assert asymmetry_penalty(matrix) == pytest.approx(0.4 * 0.2 / 0.65 + 0.6 * 0.4 / 0.85)
    assert asymmetry_penalty(matrix, smoothing=0.1) == pytest.approx(0.4 * 0.2 / 0.5 + 0.6 * 0.4 / 0.7)


@given(matrices)
def test_a_symmetric_matrix_has_no_asymmetry(matrix: np.ndarray) -> None:
    balanced = matrix + matrix.T
    np.fill_diagonal(balanced, 1 + balanced.sum(axis=1).max() * 2 - balanced.sum(axis=1) + balanced.diagonal())
    assert max_asymmetry(balanced).gap == pytest.approx(0, abs=1e-12)
    assert asymmetry_penalty(balanced) == pytest.approx(0, abs=1e-12)


def test_no_pair_and_no_error_give_nan() -> None:
    assert np.isnan(max_asymmetry([[3, 1], [0, 0]]).gap)
    assert np.isnan(target_shares(np.eye(3))).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: confusion([0, 1], [0, 5], 3), "predictions: 5 is not one of"),
        (lambda: confusion([0, 9], [0, 1], 3), "labels: 9"),
        (lambda: confusion([0, 1], [0], 3), "2 labels but 1"),
        (lambda: symmetry(np.zeros((2, 3))), r"shape \(C, C\)"),
        (lambda: superclass_leakage(np.zeros((3, 3)), [0, 1]), "each of the 3 classes"),
    ],
)
def test_invalid_arguments(call: Callable[[], object], message: str) -> None:
    check_refused(message, call)
