"""Theorems 1 to 4 hold on the grid, and a statement detects a model for which it is false."""

from __future__ import annotations

import numpy as np
import pytest

from classwise.papers.theory import toy_model
from classwise.papers.theory.toy_model import HARD, ToyModel
from classwise.stats.counts import FloatArray

GRID = toy_model.grid()


def test_the_grid_is_wide() -> None:
    assert len(GRID) == 3 * 4 * 3 * 10
    assert {model.features for model in GRID} == {1, 4, 20}


@pytest.mark.parametrize("name", ["cfa23/Th1", "cfa23/Th2", "cfa23/Th3", "cfa23/Th4"])
def test_theorems_hold(name: str) -> None:
    statement = toy_model.STATEMENTS[name](GRID)
    assert statement.name == name
    assert statement.failures == ()
    assert statement.holds
    assert statement.cases >= 1000
    assert statement.says.endswith(".")


def test_clean_and_robust_gaps_are_equal() -> None:
    assert toy_model.gap_identity(GRID).holds


def test_closed_forms_against_simulation() -> None:
    statement = toy_model.closed_forms(GRID[::40])
    assert statement.holds
    assert statement.cases == 9 * 12


class Upside(ToyModel):
    """A model in which the hard class has the higher accuracy."""

    def reliability(self, label: int) -> float:
        return self.hard if label != HARD else self.easy

    def gap(self, weight: object, epsilon: float = 0.0) -> FloatArray:
        return -super().gap(weight, epsilon)  # type: ignore[arg-type]  # same signature as the base class


@pytest.mark.parametrize("name", ["cfa23/Th1", "cfa23/Th3", "cfa23/Th4"])
def test_a_false_statement_is_detected(name: str) -> None:
    statement = toy_model.STATEMENTS[name]([Upside()])
    assert not statement.holds
    assert "fail for Upside" in statement.failures[0]


def test_a_wrong_optimum_is_detected() -> None:
    class Wrong(ToyModel):
        def best_weight(self, epsilon: float) -> float:
            return 1.5 * super().best_weight(epsilon)

    assert any("optimum" in failure for failure in toy_model.theorem_2([Wrong()]).failures)


def test_weights_reach_both_sides() -> None:
    w = toy_model.weights(ToyModel())
    assert w[0] < 0.05
    assert w[-1] > ToyModel().best_class_weight(1)
    assert (np.diff(w) > 0).all()
