from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike

from classwise.analysis.confusion import Confused, confused, excess, rate_correlation, symmetric_share
from classwise.auditing.outcomes.table import Outcomes
from classwise.stats.confusion import confusion_rates, superclass_leakage, symmetry
from tests.analysis.tables import CLASSES, NAMES, SUPERCLASSES, outcomes
from tests.refusals import check_refused


def of_matrix(matrix: ArrayLike, group: tuple[int, ...]) -> Confused:
    """The analysis of predictions with this confusion matrix."""
    counts = np.asarray(matrix)
    labels, predictions = np.repeat(np.indices(counts.shape).reshape(2, -1), counts.ravel(), axis=1)
    names = tuple(f"group {place}" for place in range(max(group) + 1))
    table = Outcomes.from_predictions(labels, predictions, superclasses=group, superclass_names=names)
    return confused(table, "clean")


def test_the_matrix_by_a_loop() -> None:
    table = outcomes()
    found = confused(table, "strong")
    matrix = np.zeros((CLASSES, CLASSES), dtype=int)
    for _, row in table.rows("strong").iterrows():
        matrix[row["label"], row["prediction"]] += 1
    assert (found.matrix == matrix).all()
    assert list(found.table.index) == [NAMES[label] for label in (0, 2, 5, 1, 3, 4)]
    assert found.table.loc["b", "e"] == matrix[1, 4] / matrix[1].sum()


def test_symmetry_and_leakage_by_their_sums() -> None:
    found = confused(outcomes(), "strong")
    rates = confusion_rates(found.matrix)
    pairs = [(rates[i, j], rates[j, i]) for i in range(CLASSES) for j in range(i + 1, CLASSES)]
    assert found.pearson.value == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1])
    assert found.pearson.low < found.pearson.value < found.pearson.high
    assert found.overlap.low < found.overlap.value < found.overlap.high
    assert found.overlap.value == pytest.approx(1 - sum(abs(a - b) for a, b in pairs) / sum(a + b for a, b in pairs))
    errors = [(i, j, found.matrix[i, j]) for i in range(CLASSES) for j in range(CLASSES) if i != j]
    total = sum(count for *_, count in errors)
    inside = sum(count for i, j, count in errors if SUPERCLASSES[i] == SUPERCLASSES[j]) / total
    assert found.inside is not None
    assert found.inside.share.value == pytest.approx(inside)
    assert found.inside.chance == pytest.approx(2 / 5)  # three classes each
    assert found.inside.share.low < inside < found.inside.share.high
    assert found.inside.excess.low < 0 < found.inside.excess.high  # errors at random
    half = excess(found.matrix, np.array(SUPERCLASSES), part=0.5)
    assert half.value == pytest.approx(inside - (1 - 0.5 * (1 - 2 / 5)))
    assert half.high - half.low == pytest.approx(found.inside.excess.high - found.inside.excess.low, rel=0.1)


def test_a_few_errors_have_wide_intervals() -> None:
    """All 8 errors are inside: the lower end is that of Clopper and Pearson, (0.05 / 2)^(1 / 8)."""
    matrix = [[4, 0, 0], [0, 0, 3], [0, 5, 0]]
    found = of_matrix(matrix, (0, 1, 1))
    assert found.inside is not None
    low = 0.025 ** (1 / 8)
    assert found.inside.share == pytest.approx((1, low, 1))
    assert found.inside.chance == superclass_leakage(matrix, (0, 1, 1)).chance == 0.5
    assert found.inside.excess.value == 0.5
    assert 0 < found.inside.excess.low < 0.3
    assert found.inside.contrast.value == 1
    assert found.inside.contrast.low < 0.7
    assert found.pearson.value == pytest.approx(symmetry(confusion_rates(matrix)).pearson)
    assert found.pearson.low < 0.7
    assert found.pearson.high == 1
    assert found.overlap.value == found.overlap.high == 1
    assert found.overlap.low < 0.7


def test_the_contrast_is_the_mean_rate_inside_minus_across() -> None:
    matrix = 20 * np.array([[70, 20, 10], [6, 30, 4], [0, 1, 9]])
    found = of_matrix(matrix, (0, 0, 1)).inside
    assert found is not None
    inside, across = (20 / 100 + 6 / 40) / 2, (10 / 100 + 4 / 40 + 0 / 10 + 1 / 10) / 4
    assert found.contrast.value == pytest.approx(inside - across)
    # Each rate is a fraction of its class, so the variance is the sum over classes of multinomial variances.
    weights = np.array([[0, 1 / 2, -1 / 4], [1 / 2, 0, -1 / 4], [-1 / 4, -1 / 4, 0]])
    rates = matrix / matrix.sum(1, keepdims=True)
    spread = ((rates * weights**2).sum(1) - (rates * weights).sum(1) ** 2) / matrix.sum(1)
    assert (found.contrast.high - found.contrast.low) / 3.92 == pytest.approx(spread.sum() ** 0.5, rel=0.05)


def test_the_correlation_inside_superclasses() -> None:
    """Only pairs of one superclass count: the others are made asymmetric."""
    random = np.random.default_rng(4)
    groups = np.array([0, 0, 0, 1, 1, 1])
    same = groups[:, None] == groups
    base = random.integers(1, 40, (6, 6))
    matrix = np.where(same, base + base.T, random.integers(1, 90, (6, 6)))
    rate = matrix / matrix.sum(axis=1, keepdims=True)
    first, second = np.nonzero(np.triu(same, 1))
    found = rate_correlation(matrix, groups).estimate()
    assert found.value == pytest.approx(np.corrcoef(rate[first, second], rate[second, first])[0, 1])
    assert 0 < found.low < found.value < found.high <= 1
    assert np.isnan(rate_correlation(matrix, np.arange(6)).estimate()).all()


def test_an_asymmetric_matrix_has_an_overlap_below_1() -> None:
    """Errors go one way only, so that no noise can explain the difference."""
    found = symmetric_share(np.array([[60, 40, 0], [0, 70, 30], [0, 0, 90]]))
    assert found.value == 0
    assert found.low == 0
    assert found.high < 0.3
    assert np.isnan(symmetric_share(np.eye(3, dtype=np.int64))).all()


def test_without_a_pair_across_there_is_no_contrast() -> None:
    found = of_matrix([[5, 2], [1, 6]], (0, 0)).inside
    assert found is not None
    assert np.isnan(found.contrast).all()


def test_breaking_images_are_refused() -> None:
    table = outcomes()
    stopped = Outcomes(table.frame, table.meta.stating(early_stop=True))
    check_refused("early_stop=False", confused, stopped, "strong")
    assert confused(stopped, "clean").matrix.sum() == len(table)
