"""Thresholds for the words of cfa23, on its printed numbers, and claims that need over-fitting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from classwise.papers import catalogue
from classwise.papers.catalogue import experiment, runnable
from classwise.papers.claims import Test, evaluate
from classwise.papers.declared import Measures, declared_tests
from classwise.papers.experiment import Training, recipe_at
from classwise.papers.experiments.fair_training import (
    EpochByEpoch,
    RadiusSweep,
    RadiusSweepByClass,
    best_and_last,
    not_over_fitted,
)
from classwise.papers.interval_estimators import IntervalEstimator, Resampled, exactly
from classwise.papers.scales import SMALL, SMOKE


def answers(tests: list[Test]) -> dict[tuple[str, ...], str]:
    verdicts = evaluate([test for test in tests if test.estimators])
    return {(verdict.claim.partition("/")[2], *verdict.covers): verdict.answer for verdict in verdicts}


def printed(item: str, changed: dict[str, tuple[float, float]]) -> Measures:
    """Differences of the printed averages and worst classes under attack, some of them changed."""
    rows = {row["method"]: row for row in catalogue.printed_rows(item)}

    def value(method: str, measure: str) -> float:
        kind = "last" if measure.endswith("last") else "best"
        row = rows[method]
        pair = row.get(f"aa_{kind}") or [row["avg"], row["worst"]]
        return float(changed.get(method, pair)[measure.startswith("worst")])

    def difference(measure: str, one: str, other: str) -> IntervalEstimator:
        return exactly(value(one, measure) - value(other, measure))

    return difference


def sizes(item: str, **changed: tuple[float, float]) -> dict[tuple[str, ...], str]:
    """Answers to the tests of sizes of an item by its printed numbers."""
    words = ("under", "about", "nearly", "more than")
    own = [
        test
        for test in experiment(item).tests
        if any(word in " ".join((*test.covers, catalogue.claim(test.claim).claim)) for word in words)
        and "direction of gain and loss" not in test.covers
        and test.parts[0][0] != "{measure}"
    ]
    names = {key.replace("_", " ").replace("plus", "+"): pair for key, pair in changed.items()}
    lists = {"gate": "", "data": "cifar10", "on": ""}
    return answers(declared_tests(own, printed(item, names), lists=lists))


GAIN, LOSS = ("C14", "gain under 2 points"), ("C14", "loss of about 3 points")
SIZES, NEARLY, EXCEEDS = (
    ("C15", "about 4 and 1 points"),
    ("C19", "gain of nearly 2 points"),
    ("C27", "AT", "TRADES", "FAT"),
)


def test_the_printed_numbers_are_within_the_thresholds_of_their_words() -> None:
    found = sizes("cfa23/T1") | sizes("cfa23/T3")
    assert {key: found[key] for key in (GAIN, LOSS, SIZES, NEARLY, EXCEEDS)} == dict.fromkeys(
        (GAIN, LOSS, SIZES, NEARLY, EXCEEDS), "supported"
    )


@pytest.mark.parametrize(
    ("item", "method", "pair", "key"),
    [
        ("cfa23/T1", "FRL", (45.9, 27.0), GAIN),
        ("cfa23/T1", "FRL", (45.5, 25.4), LOSS),
        ("cfa23/T1", "FRL_plus_EMA", (48.0, 25.6), LOSS),
        ("cfa23/T1", "TRADES_plus_CFA", (49.0, 26.5), SIZES),
        ("cfa23/T1", "TRADES_plus_CFA", (51.5, 26.5), SIZES),
        ("cfa23/T1", "TRADES_plus_CFA", (50.1, 28.0), SIZES),
        ("cfa23/T1", "FAT_plus_CFA", (49.6, 20.0), EXCEEDS),
        ("cfa23/T3", "TRADES_plus_FAWA", (49.4, 24.9), NEARLY),
        ("cfa23/T3", "AT_plus_FAWA", (49.3, 23.5), NEARLY),
    ],
)
def test_other_numbers_are_not(item: str, method: str, pair: tuple[float, float], key: tuple[str, ...]) -> None:
    assert sizes(item, **{method: pair})[key] == "contradicted"


@pytest.mark.parametrize(
    ("easy", "hard", "answer"), [(3.0, -1.0, "supported"), (1.5, -1.0, "contradicted"), (3.0, -2.5, "contradicted")]
)
def test_clear_and_slight_changes_of_classes(easy: float, hard: float, answer: str) -> None:
    (test,) = (test for test in experiment("cfa23/F6").tests if test.covers == ("clearly and slightly",))
    assert test.cifar10
    measures: Measures = lambda measure, one, other: exactly(hard if measure[-1] in "78" else easy)  # noqa: E731
    (found,) = evaluate(declared_tests([test], measures, lists={"gate": ""}))
    assert found.answer == answer


@pytest.mark.parametrize(("apart", "answer"), [(0.0, "supported"), (0.1, "contradicted")])
def test_the_overall_accuracy_of_adjacent_epochs(apart: float, answer: str) -> None:
    """Four epochs on 20,000 images of two classes: equal ones, and ones that differ by ten points."""
    labels = np.repeat([0, 1], 10_000)
    place = np.tile(np.arange(10_000) / 10_000, 2)
    images = Resampled([place < 0.5 + apart * (epoch % 2) for epoch in range(4)], labels, 2)
    one = experiment("cfa23/F4")
    assert isinstance(one, EpochByEpoch)
    runs: Any = {"AT": SimpleNamespace(recipe=recipe_at(SMOKE, Training(recipe="cfa-at")))}
    tests = one._tested({"AT": images, "AT + FAWA": images}, runs, {}, "")
    assert answers(tests)["C9", "overall below 1 point"] == answer


def ends_of(last: float) -> Resampled:
    """Two epochs on 2,000 images of two classes, with accuracies 0.5 and another one."""
    place = np.tile(np.arange(1000) / 1000, 2)
    right = np.stack([place < 0.5, place < last])
    labels = np.repeat([0, 1], 1000)
    outcomes = SimpleNamespace(correct=lambda _: None, labels=labels, num_classes=2)
    saved: Any = SimpleNamespace(correct=lambda _, epochs: right, outcomes={1: outcomes, 2: outcomes})
    return best_and_last(saved)


def test_over_fitting_is_judged_only_where_the_accuracy_falls() -> None:
    """From 50 to 40 percent; not from 50 to 49.9 percent. At smoke scale nothing is left out."""
    assert not_over_fitted(SMALL, ends_of(0.4)) == {}
    reason = not_over_fitted(SMALL, ends_of(0.499))["over-fitting"]
    assert reason.startswith(
        "AT does not over-fit: from the best to the last epoch, its accuracy changes by -0.1 points ["
    )
    assert not_over_fitted(SMOKE, ends_of(0.499)) == {}


def test_claims_on_over_fitting_need_it() -> None:
    """C5 on the last epoch, C7 and C26; C5 on the best epoch, C6 and C25 do not."""
    values, excluded = (0.5, 1.0, 1.5), {"over-fitting": "none"}
    measures: Measures = lambda *names: exactly(1.0)  # noqa: E731
    overall, by_class = experiment("cfa23/F2a"), experiment("cfa23/F2bc")
    assert isinstance(overall, RadiusSweep)
    assert isinstance(by_class, RadiusSweepByClass)
    tests = [*overall.tested(measures, values, 10, excluded), *by_class.tested(measures, values, 10, excluded)]
    assert answers(tests).keys() == {("C5", "best epoch"), ("C25",), ("C6",)}
    assert [test.claim for test in tests if not test.estimators] == ["cfa23/C5", "cfa23/C26", "cfa23/C7"]
    (weak,) = (test for test in tests if test.claim == "cfa23/C25")
    assert len(weak.estimators) == 2, "both epochs at the smaller radius"
    assert len(answers(overall.tested(measures, values, 10))) == 4


def test_every_part_of_a_claim_has_a_test() -> None:
    """Of those of cfa23 that have parts."""
    values = {
        "values": ["0.3"],
        "others": ["0.3"],
        "only": [""],
        "larger": ["2"],
        "smaller": ["0.5"],
        "classes": [0],
        "data": "tiny-imagenet",
    }
    covered = set()
    for item in (name for name in runnable() if name.startswith("cfa23")):
        for test in experiment(item).tests:
            default = (catalogue.claim(test.claim).default_part,)
            covered |= {(test.claim, part) for _, parts in test.combinations(values) for part in parts or default}
    parts = {
        pair for claim in catalogue.paper("cfa23").claims for pair in catalogue.claim_parts(claim.id) if claim.parts
    }
    assert parts - covered == set()
