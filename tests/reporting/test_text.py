"""`str` of a result is what the commands print; its `repr` is one line."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import classwise as cw
from classwise.cli.console import show_result
from classwise.reporting.text.layout import TextTable
from tests.refusals import check_refused

LABELS = [0, 0, 0, 1, 1, 1]


def audit_of(predictions: list[int], **meta: Any) -> cw.Audit:
    attacks: dict[str, Any] = {"pgd": np.array(predictions)}
    return cw.Audit(cw.Outcomes.from_predictions(LABELS, attacks=attacks, class_names=["cat", "d\nog"], **meta))


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    data = cw.load_data("digits", subset=20)
    model = cw.load_model("small-cnn", data=data, width=0.1)
    first, second = audit_of([0, 0, 1, 1, 0, 0]), audit_of([0, 0, 0, 1, 1, 0])
    near, far = (audit_of([0, 0, 1, 1, 0, 0], threat=("Linf", radius)) for radius in (0.1, 0.2))
    return {
        "audit": first,
        "comparison": cw.compare(first, second, attack="pgd"),
        "crossing": cw.compare(near, far, attack="pgd", across="threat"),
        "board": cw.board({"first": first, "second": second}),
        "curve": cw.robustness_curve(model, data, attacks="fgsm", highest=0.2, rounds=1),
        "worst class": cw.find_worst_class(model, data, ("Linf", 0.1), ["fgsm", "pgd:steps=1"]),
    }


@pytest.mark.parametrize("kind", ["audit", "comparison", "crossing", "board", "curve", "worst class"])
def test_the_text_is_what_the_command_prints(
    kind: str, results: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    show_result(results[kind])
    printed = capsys.readouterr().out
    assert str(results[kind]) == printed.rstrip()
    assert printed.count("\n") > 3
    assert "\n" not in repr(results[kind])
    assert len(repr(results[kind])) < 250


def test_audits_are_compared_as_arguments() -> None:
    first, second, third = audit_of([0, 0, 1, 1, 0, 0]), audit_of([0, 0, 0, 1, 1, 0]), audit_of(LABELS)
    assert str(cw.compare(first, second, attack="pgd")) == str(cw.compare([first, second], attack="pgd"))
    assert len(cw.compare(first, second, third, attack="pgd").names) == 3
    check_refused("give a mapping of all audits, or audits without names", cw.compare, {"a": first}, second)


def test_names_of_wide_letters_are_aligned() -> None:
    table = TextTable(["class", "n"], [["cat", 60], ["猫", 5], ["e\u0301", 7]])
    assert table.lines() == ["class   n", "cat    60", "猫      5", "e\u0301       7"], "猫 has two cells, é one"


def test_results_name_the_weights_and_the_epoch(results: dict[str, Any]) -> None:
    place = "runs/cfa/checkpoints/best-average.safetensors"
    environments: list[dict[str, Any]] = [
        {"weights_file": place, "weights_epoch": 15},
        {"weights_file": "models/model.pt"},
        {},
    ]
    of_run, of_file, unknown = (
        dataclasses.replace(audit, environment=environment)
        for audit, environment in zip(
            (audit_of([0, 0, 1, 1, 0, 0]), audit_of([0, 0, 0, 1, 1, 0]), audit_of([0, 1, 0, 1, 1, 0])),
            environments,
            strict=True,
        )
    )
    assert str(of_run).startswith(f"{of_run.name}, weights best-average, epoch 15: accuracy in percent")
    assert str(of_file).startswith(f"{of_file.name}, weights model.pt: accuracy in percent")
    assert "weights" not in str(unknown)
    compared = str(cw.compare({"cfa": of_run, "at": of_file, "other": unknown}, attack="pgd"))
    assert "\nweights: cfa best-average, epoch 15; at model.pt\n" in compared
    several = str(cw.compare({"seeds": [of_run, of_file], "other": unknown}, attack="pgd"))
    assert "\nweights: seeds best-average, epoch 15 and model.pt\n" in several
    assert "weights:" not in str(results["comparison"])
    for kind in ("curve", "worst class"):
        named = dataclasses.replace(results[kind], environment=environments[0])
        assert ", weights best-average, epoch 15: " in str(named).splitlines()[0]
