"""Choices among the epochs of one training, and the worst fifth of many classes, against independent ones."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from classwise.analysis.epochs import images_of, measured
from classwise.core.errors import ClasswiseError
from classwise.papers.experiments.epochs import RULES, counts_at, selected_epoch
from classwise.papers.experiments.fair_training import worst_fifth
from classwise.papers.runner import scale_of
from classwise.stats.metrics import worst_share
from classwise.training.folder import Run

from ..conftest import Smoke


def test_the_paper_s_example() -> None:
    """Overall 53 and worst 23 beat 52 and 28 by the overall, and lose by the sum; of ties the last counts."""
    robust = pd.DataFrame([[0.23, 0.83], [0.28, 0.76], [0.28, 0.76], [0.2, 0.5]], index=[108, 110, 111, 112])
    images = pd.Series([100, 100])
    assert {name: selected_epoch(rule, robust, images) for name, (rule, _) in RULES.items()} == {
        "overall": 108,
        "overall + worst": 111,
    }
    assert counts_at(110, robust, images).correct.tolist() == [28, 76]


def test_it_chooses_what_the_training_chose(smoke: Smoke) -> None:
    """CFA's rule, from the table alone, is the event that the training wrote down."""
    key = next(key for key, recipe in smoke.results["cfa23/E1"].runs.items() if recipe == "at")
    run = Run.open(smoke.store.path / "runs" / key)
    assert run.recipe.selection == "overall+worst"
    found = selected_epoch(RULES["overall + worst"][0], measured(run, "valid", "robust"), images_of(run, "valid"))
    assert found - 1 == run.best_epoch()


@pytest.mark.parametrize("classes", [10, 12, 200])
def test_the_worst_fifth(classes: int) -> None:
    accuracy = np.random.default_rng(0).random((7, 2, classes))
    expected = [worst_share(one, 0.2) - worst_share(other, 0.2) for one, other in accuracy]
    assert worst_fifth(accuracy) == pytest.approx(expected, abs=1e-12)


def test_rows_of_the_main_table_are_those_of_the_others(smoke: Smoke) -> None:
    main = {row.name: row for row in smoke.results["cfa23/T1"].tables[0].rows}
    for row in smoke.results["cfa23/E2"].tables[0].rows:
        assert row == main[row.name]
    same = {one.claim: one.value for one in smoke.results["cfa23/T1"].verdicts}
    for one in smoke.results["cfa23/E2"].verdicts:
        assert one.value == same[one.claim]


@pytest.mark.parametrize("item", ["cfa23/T1", "cfa23/T3", "cfa23/E2", "cfa23/T4"])
def test_a_table_tells_how_many_epochs_fawa_admitted(smoke: Smoke, item: str) -> None:
    result = smoke.results[item]
    found = dict.fromkeys(re.findall(r"(\d+) of (\d+) \(", result.tables[0].note))
    judged = []
    for key in result.runs:
        lines = (smoke.store.path / "runs" / key / "events.jsonl").read_text().splitlines()
        gate = [event["admitted"] for event in map(json.loads, lines) if event["event"] == "fawa"]
        if gate:
            judged.append((str(sum(gate)), str(len(gate))))
    assert judged
    assert list(found) == list(dict.fromkeys(judged))


def test_tiny_imagenet_has_no_laptop() -> None:
    with pytest.raises(ClasswiseError, match="cfa23/T4 has no scale 'laptop'; it has smoke, full"):
        scale_of("cfa23/T4", "laptop")
