"""The best temperature is selected on other images than those on which it is evaluated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from classwise.papers.experiments.protocol import HARDEST, mean_of_halves, select_on_halves, strongest
from classwise.papers.experiments.temperature import _drop
from classwise.papers.interval_estimators import IntervalEstimator, Resampled, averaged, beyond_others, interval
from classwise.stats.counts import FloatArray
from classwise.stats.intervals import Estimate
from classwise.stats.resampling import halves

GRID = ("2", "5", "10", "50")
CLASSES, IMAGES = 6, 100
SIMULATIONS = 200


def outcomes(correct: dict[str, Any], labels: Any) -> Any:
    """The part of `Outcomes` that the selection reads."""
    return SimpleNamespace(labels=np.asarray(labels), num_classes=int(max(labels)) + 1, correct=correct.__getitem__)


def total_drop(accuracy: FloatArray) -> FloatArray:
    return np.asarray(_drop(accuracy).mean(axis=-1))


def test_halves_have_equal_shares_of_each_class() -> None:
    labels = np.array([0] * 5 + [1] * 4 + [2])
    first = halves(labels, 3)
    assert [int(first[labels == label].sum()) for label in range(3)] == [3, 2, 0]
    assert not np.array_equal(first, halves(labels, 4))


def test_an_attack_is_evaluated_on_the_half_that_did_not_select_it() -> None:
    """Each attack is strong on one half alone, so the selected one is weak where it is evaluated."""
    labels = np.repeat([0, 1], 20)
    first = halves(labels)
    table = outcomes({"PGD": np.ones(40, bool), "2": ~first, "5": first}, labels)
    selected = select_on_halves(table, ("2", "5"), "PGD")
    assert [selection.attack for selection in selected] == ["2", "5"]
    assert strongest(table, ("5", "2")) == "5"  # equal on all images
    for selection in selected:
        assert selection.images.right.all()
        assert selection.images.count.tolist() == [10, 10]
    assert mean_of_halves(selected, total_drop)(0.05).value == 0


def test_changes_of_cv_and_mcd_by_hand() -> None:
    labels = np.repeat([0, 1], 40)
    attacked, plain = (
        np.arange(80) % 40 < np.where(labels == 0, first, second) for first, second in ((8, 24), (20, 28))
    )
    for selection in select_on_halves(outcomes({"PGD": plain, "2": attacked}, labels), ("2",), "PGD"):
        a = selection.images.accuracy
        noise = a * (1 - a) / 19
        cv = [row.var() - (1 - 1 / 2) * part.mean() for row, part in zip(a, noise, strict=True)]
        assert selection.variance_change()(0.05).value == pytest.approx(1e4 * (cv[0] - cv[1]))
        assert selection.discrepancy_change()(0.05).value == pytest.approx(100 * (np.ptp(a[0]) - np.ptp(a[1])))


def test_the_mean_of_dependent_numbers() -> None:
    parts = [interval(Estimate(1.0, 0.0, 2.0)), interval(Estimate(4.0, 2.0, 6.0))]
    value, low, high = averaged(parts)(0.05)
    one, other = (part(0.025) for part in parts)
    assert (value, low, high) == pytest.approx((2.5, (one.low + other.low) / 2, (one.high + other.high) / 2))
    assert low < (parts[0](0.05).low + parts[1](0.05).low) / 2


@pytest.mark.slow
def test_simulated_coverage_if_no_temperature_changes_anything() -> None:
    """All attacks have the same class accuracies: an interval above 0 is an error, whose rate may be at most 2.5 %.

    Selected and evaluated on the same images, the best temperature errs more often.
    """
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    accuracy = np.array([0.7, 0.6, 0.5, 0.2, 0.3, 0.4])[labels]
    wrong = dict.fromkeys(("total", "CV", "MCD", "classes 3 and 4", "total on the same images"), 0)
    for _ in range(SIMULATIONS):
        table = outcomes({name: random.random(len(labels)) < accuracy for name in ("PGD", *GRID)}, labels)
        selected = select_on_halves(table, GRID, "PGD")
        same = Resampled(np.stack([table.correct(strongest(table, GRID)), table.correct("PGD")]), labels, CLASSES)
        estimators: dict[str, IntervalEstimator] = {
            "total": mean_of_halves(selected, total_drop),
            "CV": averaged([selection.variance_change() for selection in selected]),
            "MCD": averaged([selection.discrepancy_change() for selection in selected]),
            "classes 3 and 4": mean_of_halves(selected, lambda a: beyond_others(_drop(a), HARDEST)),
            "total on the same images": same.part(total_drop, 100),
        }
        for name, estimator in estimators.items():
            wrong[name] += estimator(0.05).low > 0
    assert wrong.pop("total on the same images") > 0.05 * SIMULATIONS
    assert all(count <= 0.025 * SIMULATIONS for count in wrong.values()), wrong
