"""``classwise evidence``: its exit statuses, and the report that it verifies."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import classwise as cw
from tests.auditing.test_criteria import POLICY, written
from tests.reporting.test_evidence import as_if_computed

from .conftest import Classwise


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    labels = np.repeat([0, 1], 20)
    outcomes = cw.Outcomes.from_predictions(
        labels, labels, {"pgd": labels * (np.arange(40) % 2)}, ["0", "1", "2"], threat="Linf:0.1"
    )
    cw.Audit(as_if_computed(outcomes)).save(tmp_path / "a")
    return "a"


def test_statuses_of_the_verdicts(audit: str, classwise: Classwise) -> None:
    for name, condition, status, verdict in (
        ("passed", "overall(all) < 0.1", 0, "passed"),
        ("failed", "overall(all) < 0.9", 1, "failed"),
        ("undecided", "'2'(all) < 0.1", 3, "undecided"),
    ):
        policy = written(Path(f"{name}.yaml"), fail_if=[condition])
        said = classwise("evidence", audit, "--policy", str(policy), "--out", name)
        assert said.status == status
        assert f"verdict: {verdict}" in said.out
        assert "Criteria stated after the run." in said.out
        assert (Path(name) / "evidence.html").is_file()


def test_a_model_card_on_request(audit: str, classwise: Classwise) -> None:
    words = ("evidence", audit, f"--policy={written(Path('policy.yaml'), fail_if=['overall(all) < 0.1'])}")
    assert "card:" not in classwise(*words, "--out=plain").out
    assert not Path("plain/README.md").exists()
    assert "card: evidence/README.md" in classwise(*words, "--card").out
    assert Path("evidence/README.md").read_text().startswith("---\nlicense: unknown\n")
    assert classwise("evidence", "verify", "evidence").status == 0
    said = classwise("report", "evidence", "--check")  # it has a manifest in place of checksums
    assert (said.status, "classwise evidence verify evidence" in said.err) == (2, True)


def test_verification_exits_with_1_if_anything_differs(audit: str, classwise: Classwise) -> None:
    policy = written(Path("policy.yaml"), fail_if=["overall(all) < 0.1"])
    said = classwise("evidence", "write", audit, "--policy", str(policy), "--json")
    assert json.loads(said.out)["verdict"] == "passed"
    assert "give the same report" in classwise("evidence", "verify", "evidence", audit).out
    page = Path("evidence/evidence.html")
    page.write_text(page.read_text().replace("passed", "failed", 1))
    said = classwise("evidence", "verify", "evidence")
    assert said.status == 1
    assert "evidence.html differs from its SHA-256" in said.err


@pytest.mark.parametrize(
    ("option", "needed"),
    [
        ("--split=train", "--data"),
        ("--subset=3", "--data"),
        ("--data-set=size=8", "--data"),
        ("--width=0.5", "--model"),
        ("--model-set=depth=28", "--model"),
        ("--seed=3", "--rerun"),
    ],
)
def test_options_of_what_is_not_compared_are_refused(classwise: Classwise, option: str, needed: str) -> None:
    name = option.partition("=")[0]
    assert classwise("evidence", "verify", "evidence", option).refusal == f"classwise: {name} requires {needed}"


AUDITED = ("audit", "small-cnn", "--data=digits", "--width=0.1", "--subset=40", "--precision=float32")


@pytest.mark.parametrize(
    ("conditions", "guards", "status", "verdict"),
    [
        (["overall(all) > 0.99", "overall(all) >= 1"], [], 0, "passed"),
        (["overall(all) > 0.99", "overall(all) >= 0"], [], 1, "failed"),
        (["overall(all) > 0.99", "overall(all) >= 1"], ["untrained"], 3, "not as required"),
        (["overall(all) >= 0"], ["untrained"], 1, "failed"),
    ],
    ids=["passed", "failed", "a guard warns", "failed, and a guard warns"],
)
def test_an_audit_with_a_policy_decides_its_criteria_as_evidence_does(
    classwise: Classwise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    conditions: list[str],
    guards: list[str],
    status: int,
    verdict: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("policy.yaml"), fail_if=conditions, guards=guards)
    said = classwise(*AUDITED, "--policy=policy.yaml", "--out=a", "--junit=a.xml", "--sarif=a.sarif")
    assert said.status == status, said.err
    lines = {word: [line for line in (said.out + said.err).splitlines() if line.startswith(word)]
             for word in ("passed: ", "failed: ", "not as required: ")}  # fmt: skip
    passed = 0 if guards else sum(not condition.endswith(">= 0") for condition in conditions)
    failed = sum(condition.endswith(">= 0") for condition in conditions)
    assert [*map(len, lines.values())] == [passed, failed, len(guards)]
    report = classwise("evidence", "a", "--policy=policy.yaml")
    assert (report.status, f"verdict: {verdict}" in report.out) == (status, True)
    assert ("a: passed: " in report.out) == (status == 0 or (failed > 0 and not guards))
    for line in lines["not as required: "]:
        assert f"a: {line}" in report.out
    if guards:
        assert all(word not in Path("evidence/evidence.html").read_text() for word in (">passed<", "it passes, too"))
    suite = ET.parse("a.xml").getroot()
    undecided = [case.get("name") for case in suite.iter("testcase") if case.find("error") is not None]
    assert int(suite.get("failures", "")) == failed
    assert undecided == (["requires an audit as of the policy"] if guards else []) + [
        f"fails if {condition}" for condition in conditions if guards and not condition.endswith(">= 0")
    ]
    found = json.loads(Path("a.sarif").read_text())["runs"][0]["results"]
    assert sum(result["ruleId"] == "undecided" for result in found) == len(undecided)
    again = classwise(*AUDITED, "--policy=policy.yaml", "--out=b", "--json")
    facts = json.loads(again.out)
    assert (again.status, len(facts["not_as_required"])) == (status, len(guards))
    assert [*facts["fail_if"].values()] == [
        True if text.endswith(">= 0") else None if guards else False for text in conditions
    ]


def test_a_run_is_audited_at_the_threat_of_the_policy(
    classwise: Classwise, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at that of its training; another one on the command line is refused."""
    monkeypatch.chdir(tmp_path)
    (threat_model := {**POLICY["threat_model"]})["radius"] = "Linf:0.05"
    written(Path("policy.yaml"), threat_model=threat_model, fail_if=["overall(clean) > 0.99"])
    words = ("audit", run_folder, "--subset=40", "--policy=policy.yaml")
    said = classwise(*words, "--out=a")
    assert said.status == 0, said.err
    assert cw.Run.open(run_folder).recipe.threat != "Linf:0.05" == cw.Audit.load("a").outcomes.meta.threat
    assert "states the threat Linf:0.05, and the audit has Linf:0.1" in classwise(*words, "--threat=Linf:0.1").refusal


def test_the_criteria_of_a_policy_are_checked_before_any_attack(
    classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("policy.yaml"), fail_if=["eleven(all) < 0.1"])
    assert "unknown measure or class" in classwise(*AUDITED, "--policy=policy.yaml", "--out=a").refusal
    assert not Path("a").exists()
