"""JUnit XML and SARIF of conditions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import classwise as cw
from classwise.auditing.compare.changes import ChangeThreshold
from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.reporting.exports.builds import Check, change_checks, checks_of, write_junit, write_sarif

REQUIRED = {
    "log": {"version", "runs"},
    "run": {"tool"},
    "tool": {"driver"},
    "driver": {"name"},
    "rule": {"id"},
    "result": {"message"},
}
"""The required properties of sarif-schema-2.1.0.json."""
LEVELS = {"none", "note", "warning", "error"}


def thresholds(*texts: str) -> dict[str, Threshold]:
    return {text: Threshold.parse(text) for text in texts}


def an_audit(*, incomplete: bool = False) -> Audit:
    names = ["c<a>t", "dog\x07", "owl"]
    table = Outcomes.from_predictions([0, 0, 1, 1], [0, 0, 1, 1], {"pgd": [0, 1, 1, 1]}, names)
    frame = table.frame[(table.frame["attack"] != "pgd") | (table.frame["index"] != 3)] if incomplete else table.frame
    return Audit(Outcomes(frame, table.meta), (AuditWarning("noise", "It is noisy.", 0.1),), name="mine")


def test_the_worst_class_is_a_case_per_class() -> None:
    checks = checks_of(an_audit(), thresholds("worst(all) < 0.6", "overall(pgd) < 0.5", "worst(all) > 0.9"))
    assert [(check.name, check.status) for check in checks] == [
        ("worst(all) < 0.6: c<a>t", "failed"),
        ("worst(all) < 0.6: dog\x07", "passed"),
        ("overall(pgd) < 0.5", "passed"),
        ("worst(all) > 0.9", "passed"),
    ]
    interval = "(2 images; 95 % interval 1.3–98.7 %)"
    assert checks[0].message == f"accuracy of c<a>t under all is 50.0 % {interval}; required: at least 60 %"


def test_a_failed_class_lists_its_images(tmp_path: Path) -> None:
    names = ["<a>\x1b\u202e.png", "::error::x", "=1+1", None, *(f"{row}.png" for row in range(4, 30))]
    labels = [0] * 28 + [1] * 2
    pgd = [1] * 25 + [0] * 3 + [1, 0]
    outcomes = Outcomes.from_predictions(labels, labels, {"pgd": pgd}, ["cat", "dog"], image_names=names)
    texts = ("worst(all) < 0.6", "cat(pgd) < 0.6", "worst(pgd).low < 0.6", "overall(all) < 0.9", "worst(all) > 0.01")
    checks = checks_of(Audit(outcomes), thresholds(*texts))
    of_cat = [f"misclassified: {name} as dog" for name in names[:3]]
    for check in checks:
        if "cat" in check.name:
            assert check.images[:4] == (*of_cat, "misclassified: image 3 as dog")
            assert (len(check.images), check.images[-1]) == (21, "and 5 more")
    assert [len(check.images) for check in checks] == [21, 1, 21, 21, 1, 0, 0]
    assert [check.name for check in checks[3:5]] == [f"worst(pgd).low < 0.6: {name}" for name in ("cat", "dog")]
    assert checks[3].message.startswith("lower end of cat under pgd is 2.3 % (28 images; 95 % interval 2.3–28.2 %);")
    assert checks[1].images == ("misclassified: 29.png as cat",)
    write_junit(tmp_path / "a.xml", checks, "mine")
    failure = ET.parse(tmp_path / "a.xml").find("testsuite/testcase/failure")
    assert failure is not None
    assert (failure.text or "").splitlines()[2] == "misclassified: <a>⟨U+001B⟩⟨U+202E⟩.png as dog"
    assert failure.get("message") == checks[0].message
    text = sarif(tmp_path / "a.sarif", checks[:1])["runs"][0]["results"][0]["message"]["text"]
    assert text.splitlines()[:2] == [f"{checks[0].name}: {checks[0].message}", (failure.text or "").splitlines()[2]]
    assert len(text.splitlines()) == 22
    frame = outcomes.frame[(outcomes.frame["attack"] != "pgd") | (outcomes.frame["index"] != 26)]
    check, _ = checks_of(Audit(Outcomes(frame, outcomes.meta)), thresholds("worst(all) < 0.6"))
    assert (check.status, check.images[-2:]) == ("failed", ("misclassified: 19.png", "and 5 more"))


def test_what_is_not_evaluated_is_undecided() -> None:
    checks = checks_of(an_audit(incomplete=True), thresholds("worst(all) < 0.6"))
    assert [check.status for check in checks] == ["failed", "undecided"]
    assert checks[1].message.startswith(
        "accuracy of dog\x07 under all depends on images not evaluated: 50.0 % to 100.0 %;"
    )


def test_a_class_of_an_incomplete_audit_has_its_own_number_of_images() -> None:
    """Of all of its images the verdict is known, of some images of other classes it is not."""
    labels = [0] * 6 + [1] * 4
    outcomes = Outcomes.from_predictions(labels, labels, {"pgd": [1] * 6 + [0] * 4}, ["cat", "dog"])
    frame = outcomes.frame[(outcomes.frame["attack"] != "pgd") | (outcomes.frame["index"] < 7)]
    audit = Audit(Outcomes(frame, outcomes.meta))
    (cat,) = checks_of(audit, thresholds("cat(all) < 0.6"))[:1]
    assert cat.message.startswith("accuracy of cat under all is 0.0 % (6 images with a result); required: ")


def test_junit(tmp_path: Path) -> None:
    checks = checks_of(an_audit(incomplete=True), thresholds("worst(all) < 0.6", "overall(all) < 0.1"))
    write_junit(tmp_path / "a.xml", checks, "mine")
    root = ET.parse(tmp_path / "a.xml").getroot()
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    for element in (root, suite):
        assert [element.attrib[key] for key in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert [case.tag for case in suite] == ["testcase"] * 3
    assert [[part.tag for part in case] for case in suite] == [["failure"], ["error"], ["system-out"]]
    assert suite[0].attrib == {"classname": "classwise.mine", "name": "fails if worst(all) < 0.6: c<a>t"}
    assert suite[1].attrib["name"].endswith("dog⟨U+0007⟩")
    name, message, image = (suite[0][0].text or "").splitlines()
    assert image == "misclassified: image 1"
    assert (name, message) == (suite[0].attrib["name"], suite[0][0].attrib["message"])


def test_a_condition_on_any_class_is_a_case_per_class_and_method(tmp_path: Path) -> None:
    labels = [0] * 20 + [1] * 30
    new = [1] * 14 + [0] * 6 + [1] * 29 + [0]
    names = ["cat", "dog", "owl"]
    comparison = cw.compare(
        {name: Audit(Outcomes.from_predictions(labels, pgd, {}, names)) for name, pgd in (("a", labels), ("b", new))},
        attack="clean",
    )
    texts = ("any(clean).high < 0", "worst(clean) < -90%")
    conditions = {text: ChangeThreshold.parse(text) for text in texts}
    losses = {text: {"b": condition.smallest_losses(comparison, "b")} for text, condition in conditions.items()}
    checks = change_checks(comparison, conditions, losses)
    assert [(check.name, check.status) for check in checks] == [
        ("any(clean).high < 0: b: cat", "failed"),
        ("any(clean).high < 0: b: dog", "passed"),
        ("worst(clean) < -90%: b", "passed"),
    ]
    assert "could have failed" not in checks[0].message
    assert checks[1].message.endswith(
        "required: at least 0 points; smallest loss of dog that could have failed this: 23.3 points"
    )


def sarif(path: Path, checks: list[Check], warnings: Any = ()) -> dict[str, Any]:
    write_sarif(path, checks, path.parent / "my page.html", warnings)
    log: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return log


def test_sarif_has_its_required_properties(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    audit = an_audit(incomplete=True)
    log = sarif(tmp_path / "a.sarif", checks_of(audit, thresholds("worst(all) < 0.6")), audit.warnings)
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    parts = {"log": [log], "run": [run], "tool": [run["tool"]], "driver": [driver], "rule": driver["rules"]}
    for kind, objects in (parts | {"result": run["results"]}).items():
        assert all(part.keys() >= REQUIRED[kind] for part in objects)
    assert log["version"] == "2.1.0"
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        ("fail-if", "error"),
        ("undecided", "warning"),
        ("noise", "warning"),
    ]
    for result in run["results"]:
        assert result["level"] in LEVELS
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "my%20page.html"
        assert result["message"]["text"]


def test_sarif_of_a_passed_build_has_no_result(tmp_path: Path) -> None:
    checks = checks_of(an_audit(), thresholds("worst(all) < 0.1"))
    assert sarif(tmp_path / "a.sarif", checks)["runs"][0]["results"] == []


def test_a_fingerprint_does_not_depend_on_the_value(tmp_path: Path) -> None:
    logs = [
        sarif(tmp_path / "a.sarif", [Check(name, "failed", text)])
        for name, text in (("a", "1"), ("a", "2"), ("b", "1"))
    ]
    prints = [log["runs"][0]["results"][0]["partialFingerprints"]["condition/v1"] for log in logs]
    assert prints[0] == prints[1] != prints[2]
