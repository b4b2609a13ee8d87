from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from classwise.attacks import suites
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import parse_attacks
from classwise.reporting.exports.robustbench import CLASSES, robustbench, write_robustbench
from tests.refusals import check_refused

from .conftest import MakeAudit

THEIR_KEYS = [
    "link", "name", "authors", "additional_data", "number_forward_passes", "dataset",
    "venue", "architecture", "eps", "clean_acc", "reported", "autoattack_acc",
]  # fmt: skip
"""Those of model_info/cifar10/Linf/Rice2020Overfitting.json, in its order."""


@pytest.fixture(autouse=True)
def standard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite whose members are called as those of the audits here."""
    monkeypatch.setitem(suites.SUITES, "autoattack", {"standard": ("pgd:steps=3", "fgsm")})


@pytest.fixture
def make(make_audit: MakeAudit) -> MakeAudit:
    def make_one(**meta: Any) -> Audit:
        made = make_audit(
            accuracy=(0.6, 0.7, 0.3, 0.1), warnings=(AuditWarning("noise", "It is noisy.", float("nan")),)
        )
        specs = {"clean": None, **parse_attacks("autoattack").specs()}
        frame = made.outcomes.frame.assign(attack=made.outcomes.frame["attack"].replace({"cw": "fgsm"}))
        about: dict[str, Any] = {"attacks": specs, "data": "cifar10", "early_stop": True, "cascade": True} | meta
        outcomes = type(made.outcomes)(frame, type(made.outcomes.meta).of(**vars(made.outcomes.meta) | about))
        return Audit(outcomes, made.warnings)

    return make_one


def test_their_keys_in_their_order(make: MakeAudit) -> None:
    found = robustbench(make())
    assert list(found) == [*THEIR_KEYS, "classwise"]
    assert (found["dataset"], found["eps"]) == ("cifar10", "8/255")
    assert (found["clean_acc"], found["autoattack_acc"]) == ("95.00", "42.50")
    assert {found[key] for key in found["classwise"]["to_fill_in"]} == {None}


def test_class_by_class(make: MakeAudit, tmp_path: Path) -> None:
    audit = make()
    write_robustbench(audit, tmp_path / "new" / "Mine.json")
    block = json.loads((tmp_path / "new" / "Mine.json").read_text(encoding="utf-8"))["classwise"]
    assert block["worst_class"]["class"] == "cat"
    assert block["worst_class"]["accuracy"] == block["classes"]["cat"]["autoattack"] == 0.1
    assert block["classes"]["cat"]["n"] == 100
    assert block["classes"]["cat"]["low"] == pytest.approx(audit.by_class.loc["cat", "all_low"])
    assert block["hashes"]["model_sha256"] == "ab" * 32
    assert block["guards"] == [{"name": "noise", "sentence": "It is noisy.", "value": None}]
    assert block["guards_not_run"] == []
    assert block["notes"] == ["400 images were evaluated; the leaderboard evaluates 10000"]
    assert list(block["settings"]["attacks"]) == ["pgd", "fgsm"]


def test_fields_of_the_author(make: MakeAudit) -> None:
    info = {
        "name": "Mine",
        "venue": "ICML 2020",
        "additional_data": "false",
        "number_forward_passes": "1",
        "reported": "58",
        "footnote": "None.",
    }
    found = robustbench(make(), info)
    assert (found["name"], found["additional_data"], found["number_forward_passes"]) == ("Mine", False, 1)
    assert (found["reported"], found["footnote"]) == ("58", "None.")
    assert found["classwise"]["to_fill_in"] == ["link", "authors", "architecture"]


def test_the_data_set_may_have_another_name(make: MakeAudit, monkeypatch: pytest.MonkeyPatch) -> None:
    check_refused(
        "'cifar100' has 100 classes, but the audited data have 4",
        robustbench,
        make(data="photos"),
        {"dataset": "cifar100"},
    )
    monkeypatch.setitem(CLASSES, "cifar100", 4)
    assert robustbench(make(data="photos"), {"dataset": "cifar100"})["dataset"] == "cifar100"


def test_other_radii_are_noted(make: MakeAudit) -> None:
    notes = robustbench(make(threat="L2:0.25"))["classwise"]["notes"]
    assert "the L2 leaderboard of cifar10 uses radius 0.5, this audit 0.25" in notes
    assert "RobustBench has no L2 leaderboard for imagenet" in str(robustbench(make(threat="L2:0.5", data="imagenet")))


def other_suite() -> dict[str, Any]:
    return {"clean": None, **parse_attacks(["pgd:steps=4", "fgsm"]).specs()}


@pytest.mark.parametrize(
    ("meta", "info", "message"),
    [
        ({"threat": "L1:12"}, {}, "threat L1:12: RobustBench accepts a single radius in Linf or L2"),
        ({"threat": "Linf:per-image"}, {}, "a single radius in Linf or L2"),
        ({"threat": None}, {}, "a single radius in Linf or L2"),
        ({"attacks": other_suite}, {}, "autoattack_acc requires exactly the attacks of AutoAttack's standard version"),
        ({"early_stop": False}, {}, "audit with --early-stop"),
        ({"split": "train"}, {}, "split 'train': RobustBench evaluates test images"),
        ({"images": 900}, {}, "the audit is incomplete"),
        ({"data": "photos"}, {}, "no data set 'photos'"),
        ({}, {"dataset": "imagenet"}, "dataset 'imagenet': the audited data set is 'cifar10'"),
        ({"data": "svhn"}, {"dataset": "cifar10"}, "dataset 'cifar10': the audited data set is 'svhn'"),
        ({}, {"clean_acc": "99"}, "clean_acc: measured by the audit, cannot be set"),
        ({}, {"venu": "ICML"}, "did you mean 'venue'"),
        ({}, {"additional_data": "maybe"}, "additional_data 'maybe': must be true or false"),
        ({}, {"number_forward_passes": "0"}, "must be a positive integer"),
        ({}, {"reported": "0.58 or so"}, "must be an accuracy in percent"),
    ],
)
def test_fields_without_their_robustbench_meaning_are_refused(
    make: MakeAudit, meta: dict[str, Any], info: dict[str, str], message: str, tmp_path: Path
) -> None:
    chosen = {key: value() if callable(value) else value for key, value in meta.items()}
    check_refused(message, write_robustbench, make(**chosen), tmp_path / "mine.json", info)
    assert not (tmp_path / "mine.json").exists()


def test_other_attacks_are_named(make_audit: MakeAudit) -> None:
    check_refused(r"this audit ran pgd, cw; audit with --attack autoattack only", robustbench, make_audit())
