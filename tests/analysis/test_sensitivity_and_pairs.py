"""Sensitivity to the temperature, and pairs of confused classes: against loops and known values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from classwise.analysis.pairs import pairs
from classwise.analysis.sensitivity import sensitivity
from classwise.auditing.outcomes.table import Outcomes
from classwise.stats.counts import FloatArray
from classwise.stats.paired import paired_interval
from tests.analysis.tables import CLASSES, NAMES, outcomes
from tests.refusals import check_refused

MATRIX = np.array([[50, 2, 30, 0], [9, 60, 1, 0], [25, 5, 40, 1], [0, 0, 0, 70]])


def test_sensitivity_equals_scipy_on_a_loop() -> None:
    table = outcomes()
    found = sensitivity(table, "weak", "strong")
    weak, strong = (table.rows(name) for name in ("weak", "strong"))
    cvc, accuracy, drop = [], [], []
    for label in range(CLASSES):
        mine = (weak["label"] == label).to_numpy()
        cvc.append(weak["confidence_variance"][mine].mean())
        accuracy.append(weak["correct"][mine].mean())
        drop.append(weak["correct"][mine].mean() - strong["correct"][mine].mean())
    frame = found.table
    assert list(frame.index) == list(NAMES)
    assert frame[["cvc", "accuracy", "drop"]].to_numpy() == pytest.approx(np.stack([cvc, accuracy, drop], axis=1))
    assert found.vulnerable.value == pytest.approx(stats.spearmanr(cvc, accuracy).statistic)
    assert found.sensitive.value == pytest.approx(stats.spearmanr(cvc, drop).statistic)
    assert -1 <= found.vulnerable.low <= found.vulnerable.high <= 1
    again = sensitivity(table, "weak", "strong")
    assert again.vulnerable == found.vulnerable


def test_a_perfect_correlation_has_a_narrow_interval() -> None:
    """Classes with increasing confidences, of which increasing numbers of images are robust."""
    labels = np.repeat(np.arange(CLASSES), 200)
    right = np.arange(len(labels)) % 200 < 30 * (labels + 1)
    shares = np.full((len(labels), CLASSES), 0.0)
    for row, label in enumerate(labels):
        shares[row] = (1 - (0.3 + 0.1 * label)) / (CLASSES - 1)
        shares[row, label if right[row] else (label + 1) % CLASSES] = 0.3 + 0.1 * label
    known = {"pgd": shares, "hot": shares}
    predicted = np.where(right, labels, (labels + 1) % CLASSES)
    table = Outcomes.from_predictions(labels, predicted, {"pgd": predicted, "hot": predicted}, NAMES, known)
    found = sensitivity(table, "pgd", "hot")
    assert found.vulnerable.value == 1
    assert found.vulnerable.low > 0.8
    assert found.vulnerable.high == 1
    assert np.isnan(found.sensitive.value), "no class drops"


def test_sensitivity_of_invalid_outcomes() -> None:
    table = outcomes()
    bare = Outcomes.from_predictions(table.labels, table.labels, {"a": table.labels, "b": table.labels}, NAMES)
    check_refused("'a': confidences of some images are missing", sensitivity, bare, "a", "b")
    few = Outcomes.from_predictions([0, 1, 0], [0, 1, 0], {"a": [0, 1, 0]}, ["a", "b"], {"a": np.full((3, 2), 0.5)})
    check_refused("2 classes have images; a correlation requires at least 3", sensitivity, few, "a", "a")


def test_pairs_by_a_loop() -> None:
    found = pairs(MATRIX, "abcd", [0, 1, 0, 1])
    expected = []
    for i in range(4):
        for j in range(i + 1, 4):
            here, there = (MATRIX[r].sum() - MATRIX[r, r] for r in (i, j))
            tie = ((MATRIX[i, j] / here if here else 0) + (MATRIX[j, i] / there if there else 0)) / 2
            rows = [[MATRIX[a, b] if a != b else -1 for b in range(4)] for a in range(4)]
            mutual = here > 0 and there > 0 and MATRIX[i, j] == max(rows[i]) and MATRIX[j, i] == max(rows[j])
            if tie:
                expected.append(("abcd"[i], "abcd"[j], MATRIX[i, j], MATRIX[j, i], tie, mutual, i % 2 == j % 2))
    expected.sort(key=lambda row: -row[4])
    frame = found.table
    assert len(frame) == len(expected)
    for row, expected_row in zip(frame.to_numpy().tolist(), expected, strict=True):
        assert row[:4] + row[5:] == [*expected_row[:4], *expected_row[5:]]
        assert row[4] == pytest.approx(expected_row[4])
    assert frame["mutual"].tolist() == [True, False, False, False]
    assert found.ties == pytest.approx(found.ties.T)
    assert pairs(MATRIX, "abcd").table["inside"].isna().all()


def test_the_interval_of_a_lead_excludes_0_only_for_clear_leads() -> None:
    found = pairs(MATRIX, "abcd")
    clear = found.lead(0, 2)
    assert clear.value == pytest.approx((30 - 2) / 82)
    assert clear.low > 0
    behind = found.lead(0, 1)
    assert behind.value == pytest.approx((2 - 30) / 82)
    assert behind.high < 0
    assert found.lead(3, 0).value == 0
    scarce = pairs([[50, 4, 3], [3, 50, 4], [1, 1, 50]], "abc").lead(0, 1)
    assert scarce.low < 0 < scarce.value


def test_a_lead_over_the_next_class_by_paired_intervals() -> None:
    """The next class is c, and b has the widest lead: each difference has the interval of two paired proportions."""
    found = pairs([[50, 4, 30], [3, 50, 4], [20, 12, 68]], "abc").lead(2, 0)
    low, high = paired_interval([20], [12], [100])
    assert found == pytest.approx((0.08, low[0], high[0]))
    row = [60, 30, 8, 2]
    found = pairs([row, *np.eye(4, dtype=int)[1:]], "abcd").lead(0, 1)
    assert found.low == min(paired_interval([30, 30], [8, 2], [100, 100]).low)
    assert found.high == min(paired_interval([30, 30], [8, 2], [100, 100], 0.025).high)
    assert np.isnan(pairs(np.zeros((3, 3), dtype=int), "abc").lead(0, 1)).all()


@pytest.mark.parametrize(
    ("matrix", "names", "message"),
    [
        (np.eye(2), "abc", "expected counts"),
        (np.ones((3, 4)), "abc", "expected counts"),
        (-np.eye(3), "abc", "expected counts"),
        (MATRIX, "ab", "2 names for 4 classes"),
    ],
)
def test_invalid_matrices(matrix: FloatArray, names: str, message: str) -> None:
    check_refused(message, pairs, matrix, names)
