"""Selection of epochs, and the worst fifth of many classes, compared with independent computations."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from classwise.analysis.epochs import images_of, measured
from classwise.analysis.fluctuation import fluctuation
from classwise.papers.catalogue import experiment
from classwise.papers.experiment import recipe_at
from classwise.papers.experiments.fair_training import (
    PAPERS_GATE,
    RULES,
    _calmer,
    _Trained,
    cost_of_start,
    counts_at,
    selected_epoch,
    worst_fifth,
)
from classwise.papers.interval_estimators import Resampled
from classwise.papers.runner import scale_of
from classwise.stats.metrics import worst_share
from classwise.training.averaging import FAWA

from ..conftest import Smoke


def test_the_example_of_the_paper() -> None:
    """53 overall and 23 worst beat 52 and 28 by the overall accuracy, but not by the sum; the last wins a tie."""
    robust = pd.DataFrame([[0.23, 0.83], [0.28, 0.76], [0.28, 0.76], [0.2, 0.5]], index=[108, 110, 111, 112])
    images = pd.Series([100, 100])
    assert {name: selected_epoch(rule, robust, images) for name, (rule, _) in RULES.items()} == {
        "overall": 108,
        "overall + worst": 111,
    }
    assert counts_at(110, robust, images).correct.tolist() == [28, 76]


def test_selected_epoch_equals_that_of_the_training(smoke: Smoke) -> None:
    """The rule of CFA applied to the table agrees with the events of the training."""
    run = smoke.run_of("cfa23/T1")
    assert run.recipe.selection == "overall+worst"
    found = selected_epoch(RULES["overall + worst"][0], measured(run, "valid", "robust"), images_of(run, "valid"))
    assert found - 1 == run.best_epoch()


@pytest.mark.parametrize("classes", [10, 12, 200])
def test_the_worst_fifth(classes: int) -> None:
    accuracy = np.random.default_rng(0).random((7, 2, classes))
    expected = [worst_share(first, 0.2) - worst_share(second, 0.2) for first, second in accuracy]
    assert worst_fifth(accuracy) == pytest.approx(expected, abs=1e-12)


def test_items_share_the_rows_of_the_main_table(smoke: Smoke) -> None:
    main = {row.name: row for row in smoke.results["cfa23/T1"].tables[0].rows}
    for row in smoke.results["cfa23/E2"].tables[0].rows:
        assert row == main[row.name]
    same = {(verdict.claim, *verdict.covers): verdict.value for verdict in smoke.results["cfa23/T1"].verdicts}
    for verdict in smoke.results["cfa23/E2"].verdicts:
        np.testing.assert_equal(verdict.value, same[verdict.claim, *verdict.covers])  # equal if both are NaN


@pytest.mark.parametrize("item", ["cfa23/T1", "cfa23/T3", "cfa23/E2", "cfa23/T4"])
def test_tables_report_the_epochs_admitted_by_fawa(smoke: Smoke, item: str) -> None:
    result = smoke.results[item]
    found = dict.fromkeys(re.findall(r"(\d+) of (\d+) \(", result.tables[0].note))
    gates = []
    for key in result.runs:
        lines = (smoke.store.path / "runs" / key / "events.jsonl").read_text().splitlines()
        gate = [event["admitted"] for event in map(json.loads, lines) if event["event"] == "fawa"]
        if gate:
            gates.append((str(sum(gate)), str(len(gate))))
    assert gates
    assert list(found) == list(dict.fromkeys(gates))


@pytest.mark.parametrize("scale", ["small", "reduced", "medium", "full"])
@pytest.mark.parametrize("item", ["cfa23/T1", "cfa23/E2", "cfa23/F6", "cfa23/T3", "cfa23/F4", "cfa23/E3"])
def test_claims_on_fawa_are_tested_on_a_gate_that_the_scale_can_reach(item: str, scale: str) -> None:
    """The relative gate at the two scales with few epochs, beside the gate of the paper; the notes name it."""
    one, chosen = experiment(item), scale_of(item, scale)
    assert isinstance(one, _Trained)
    averaging = {name: recipe_at(chosen, training).parts.averaging for name, training in one.trainings(chosen).items()}
    gates = {name: average.gate for name, average in averaging.items() if isinstance(average, FAWA)}
    tested = {name: gate for name, gate in gates.items() if not name.endswith(PAPERS_GATE)}
    short = scale in ("small", "reduced")
    assert {*tested.values()} == {"relative" if short else "absolute"}
    assert {name: gate for name, gate in gates.items() if name not in tested} == {
        f"{name}{PAPERS_GATE}": "absolute" for name in tested if short
    }
    assert bool(one.gate_note(chosen)) == short
    fawa = [test for test in one.tests if re.search(r"\+ (CFA|FAWA)\b", repr(test.parts))]
    assert all(test.note.endswith("{gate}") for test in fawa)


def test_the_cost_of_a_robust_start() -> None:
    """At full scale 200 epochs of TRADES before 100 of FRL; ten steps of two passes each, and three for the update."""
    scale = scale_of("cfa23/E2", "full")
    table, measurement = cost_of_start(scale, experiment("cfa23/E2").trainings(scale))
    together, one = (row.cells for row in table.rows)
    assert [together[0].text, one[0].text] == ["200 + 100", "200"]
    passes = [float(cells[1].text.replace(",", "")) for cells in (together, one)]
    assert measurement.value == pytest.approx(passes[0] / passes[1], rel=1e-3)
    assert passes[0] == pytest.approx(passes[1] * (0.94 / 0.98) * 300 / 200, rel=1e-2)


def test_the_difference_of_two_fluctuations() -> None:
    """The same as that of the analysis."""
    random, labels = np.random.default_rng(3), np.repeat(np.arange(3), 30)
    runs = {name: random.random((4, 90)) < 0.6 for name in ("calm", "wild")}
    expected = fluctuation(runs, labels, 3).differences["wild"]
    images = {name: Resampled(table, labels, 3) for name, table in runs.items()}
    assert _calmer(images["wild"], images["calm"])(0.05).value == pytest.approx(100 * expected.value)
