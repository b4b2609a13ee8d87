"""Rank agreement of corruptions with attacks, compared with scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from classwise.papers.experiments.weak_classes import Corrupted, _correlation, agreement
from classwise.reporting.tables import Cell
from classwise.stats.intervals import Estimate


def test_agreement_equals_scipy() -> None:
    accuracy = np.random.default_rng(0).integers(5, size=(20, 4, 10)) / 4
    for severities, found in zip(accuracy, agreement(accuracy), strict=True):
        assert found == pytest.approx(stats.spearmanr(severities[:-1].mean(0).round(9), severities[-1]).statistic)
    for severities, found in zip(accuracy, agreement(accuracy, [1]), strict=True):
        assert found == pytest.approx(stats.spearmanr(severities[1], severities[-1]).statistic)
    constant = np.full((3, 10), 0.3)
    assert agreement(constant) == 0


def test_intervals_are_clipped_to_correlations() -> None:
    assert _correlation(Estimate(0.94, 0.81, 1.07)) == Cell("0.94", "0.81 to 1.00")
    assert _correlation(Estimate(-0.94, -1.07, -0.81)) == Cell("-0.94", "-1.00 to -0.81")


def test_counts_of_a_severity() -> None:
    right = {("fog", 1): [True, False, True], ("fog", 5): [False] * 3, ("contrast", 1): [True] * 3}
    found = Corrupted({key: np.array(row) for key, row in right.items()}, np.array([0, 0, 1]), ("a", "b"))
    assert found.counts(1).correct.tolist() == [3, 2]
    assert found.counts(1).count.tolist() == [4, 2]
    assert found.counts(5).correct.tolist() == [0, 0]
