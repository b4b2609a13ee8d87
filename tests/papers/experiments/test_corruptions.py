"""Rank agreement of corruptions with attacks, compared with scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from classwise.papers.experiments.weak_classes import Corrupted, agreement


def test_agreement_equals_scipy() -> None:
    labels = np.repeat(np.arange(10), 30)
    random = np.random.default_rng(0)
    corrupted, attacked = random.random((4, 300)) < 0.04 * labels + 0.3, random.random(300) < 0.04 * labels + 0.2
    found = agreement(corrupted, attacked, labels, 10)
    means = [row.reshape(10, 30).mean(axis=1).round(9) for row in (corrupted.mean(axis=0), attacked)]
    assert found.value == pytest.approx(stats.spearmanr(*means).statistic)
    assert 0 < found.low < found.value < found.high <= 1
    constant = agreement(corrupted, np.zeros(300, dtype=bool), labels, 10)
    assert constant.value == 0
    assert np.isnan([constant.low, constant.high]).all()


def test_counts_of_a_severity() -> None:
    right = {("fog", 1): [True, False, True], ("fog", 5): [False] * 3, ("contrast", 1): [True] * 3}
    found = Corrupted({key: np.array(row) for key, row in right.items()}, np.array([0, 0, 1]), ("a", "b"))
    assert found.counts(1).correct.tolist() == [3, 2]
    assert found.counts(1).count.tolist() == [4, 2]
    assert found.counts(5).correct.tolist() == [0, 0]
