"""Evidence reports: their content, the schema, the standards, and the verification of tampered files."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

import classwise as cw
from classwise.auditing.criteria.policy import Policy
from classwise.core.errors import IncompleteError
from classwise.core.files.storage import CHECKSUMS
from classwise.core.settings.config import describe, make
from classwise.reporting.evidence import build, facts, page
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals
from tests.auditing.test_criteria import POLICY, audited_pairs, written
from tests.refusals import check_refused

EVIDENCE = Path(facts.__file__).parent


def outcomes(policy: str | None = None, **meta: Any) -> cw.Outcomes:
    """Three unbalanced classes: 40, 30 and 10 images, of which 30, 6 and 9 are correct under attack."""
    labels = np.repeat([0, 1, 2], [40, 30, 10])
    clean, attacked = labels.copy(), labels.copy()
    clean[[0, 40]], attacked[[0, 40]] = 1, 2
    attacked[:10] = 1
    attacked[40:64] = 0
    attacked[79] = 0
    names = ["good", "scratch", "'dent' <b>"]
    stated: dict[str, Any] = {"class_names": names, "threat": "Linf:0.1", "policy": policy} | meta
    table = cw.Outcomes.from_predictions(labels, clean, {"pgd": attacked}, **stated)
    return as_if_computed(table)


def as_if_computed(table: cw.Outcomes, **changes: Any) -> cw.Outcomes:
    """The outcomes with the settings of an audit with FGSM under the label ``pgd``."""
    fgsm = describe(cw.ATTACKS, make(cw.ATTACKS, "fgsm"))
    meta = table.meta.stating(**{"early_stop": True, "precision": {"dtype": "float32"}} | changes)
    return cw.Outcomes(table.frame, dataclasses.replace(meta, attacks={"clean": None, "pgd": fgsm}))


def saved(folder: Path, policy: str | None = None, **meta: Any) -> Path:
    return cw.Audit(outcomes(policy, **meta), name=folder.name).save(folder)


def differences(*arguments: Any, **options: Any) -> list[str]:
    return build.verify(*arguments, **options).differences


@pytest.fixture
def report(tmp_path: Path) -> build.Evidence:
    file = written(tmp_path / "policy.yaml", fail_if=["worst(all) < 0.1", "overall(pgd).low < 0.2"])
    return cw.evidence(saved(tmp_path / "a", Policy.read(file).digest), file, tmp_path / "evidence")


def test_accuracies_have_simultaneous_intervals_and_counts(report: build.Evidence) -> None:
    (audit,) = report.facts["audits"]
    for name, correct in (("robust", [30, 6, 9]), ("clean", [39, 30, 10]), ("drop", [9, 24, 1])):
        low, high = class_intervals(ClassCounts(np.array([40, 30, 10]), np.array(correct)), simultaneous=True)
        found: list[Any] = [row[name] for row in audit["classes"]]  # type: ignore[literal-required]
        assert [row["count"] for row in found] == correct
        np.testing.assert_allclose([[row["low"], row["high"]] for row in found], np.transpose([low, high]))
    assert [row["possibly_worst"] for row in audit["classes"]] == [False, True, False]
    assert audit["confusion"] is not None
    assert audit["confusion"][1] == {"name": "scratch", "errors": 24, "absorbed_by": {"good": 24}}
    assert audit["absorbed"] == {"good": 25, "scratch": 10}


def test_groups_are_rows(tmp_path: Path) -> None:
    groups: dict[str, Any] = {"superclasses": (0, 1, 1), "superclass_names": ("usable", "damaged")}
    audit = cw.Audit(outcomes(**groups), group="superclass").save(tmp_path / "a")
    report = cw.evidence(audit, written(tmp_path / "p.yaml", fail_if=["damaged(all) < 0.1"]), tmp_path / "evidence")
    (found,) = report.facts["audits"]
    assert (found["group"], [row["name"] for row in found["classes"]]) == ("superclass", ["usable", "damaged"])
    assert "Accuracy per superclass, percent" in report.page.read_text()
    assert differences(report.folder) == []
    by_class = written(tmp_path / "q.yaml", fail_if=["scratch(all) < 0.1"])
    check_refused(
        r"unknown measure or class in condition .*'scratch'; known: .*damaged",
        cw.evidence,
        audit,
        by_class,
        tmp_path / "other",
    )


def test_criteria_are_decided_with_counts(report: build.Evidence) -> None:
    worst, overall = report.facts["audits"][0]["criteria"]
    assert (worst["status"], worst["n"], worst["correct"]) == ("passed", 30, 6)
    assert (overall["status"], overall["n"], overall["correct"]) == ("passed", 80, 45)
    assert report.verdict == "passed"


def test_a_failed_criterion_outweighs_an_undecided_one(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "a"), saved(tmp_path / "b", class_names=["good", "x", "y"])
    names = {"fail_if": ["good(all) < 0.99"]}
    assert cw.evidence([first, second], written(tmp_path / "1.yaml", **names), tmp_path / "1").verdict == "failed"
    names = {"fail_if": ["good(all) < 0.5"]}
    assert cw.evidence([first, second], written(tmp_path / "2.yaml", **names), tmp_path / "2").verdict == "passed"


def test_all_images_have_the_interval_of_a_criterion(tmp_path: Path) -> None:
    """Of one number a report states one interval."""
    folder = cw.Audit(outcomes(), name="whole").save(tmp_path / "whole")
    file = written(tmp_path / "policy.yaml", fail_if=["overall(all).low < 0.01"])
    (audit,) = cw.evidence(folder, file, tmp_path / "evidence").facts["audits"]
    row, (criterion,) = audit["overall"]["robust"], audit["criteria"]
    assert (row["low"], row["high"]) == pytest.approx((criterion["low"], criterion["high"]))


def test_an_incomplete_audit_has_bounds_and_undecided_criteria(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    table = outcomes()
    frame = table.frame[(table.frame["attack"] == "clean") | (table.frame["index"] < 60)]
    folder = cw.Audit(cw.Outcomes(frame, table.meta), name="part").save(tmp_path / "part")
    report = cw.evidence(folder, written(file, fail_if=["overall(all) < 0.5"]), tmp_path / "evidence")
    assert report.verdict == "undecided"
    row = report.facts["audits"][0]["overall"]["robust"]
    assert (row["accuracy"], row["low"], row["high"]) == (None, 30 / 80, 50 / 80)
    text = report.page.read_text()
    assert "bounds" in text
    assert "Bounds hold for every possible result" in text
    assert "hold simultaneously" not in text.partition("<h2>Accuracy per class</h2>")[2].partition("</section>")[0]
    jsonschema.validate(report.facts, facts.schema())


def test_the_published_schema_describes_the_content(report: build.Evidence) -> None:
    schema = json.loads((EVIDENCE / "schema.json").read_text())
    assert schema == facts.schema()
    content = json.loads((report.folder / build.FACTS).read_text())
    jsonschema.Draft202012Validator(schema).validate(content)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content | {"certified": True}, schema)


def test_the_page_has_every_section_and_no_script(report: build.Evidence) -> None:
    text = report.page.read_text()
    sections = re.findall(r"<h2>([^<]+)</h2>", text)
    named = {section for entry in facts.standards()["standards"] for section in entry["sections"]}
    assert named <= set(sections)
    assert "<script" not in text
    assert "<b>" not in text.replace("<body>", "")
    assert "counter(page)" in text
    assert "6 of 30" in text, "the counts of the criterion on the worst class"
    for statement in (facts.BEFORE, facts.MEANING, *facts.NOT_EXCLUDED, POLICY["threat_model"]["why"]):
        assert html.escape(statement, quote=False) in text


def test_the_page_says_of_standards_what_the_file_says(report: build.Evidence) -> None:
    text = report.page.read_text()
    section = text.partition("<h2>Standards</h2>")[2].partition("</section>")[0]
    shown = [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", section)]
    shown = shown[shown.index("document") :]
    expected = ["document", "written from", "topics", "applies from", "sections that may support them"]
    for entry in yaml.safe_load((EVIDENCE / "standards.yaml").read_text())["standards"]:
        topics = "; ".join(f"{topic['ref']}: {topic['about']}" for topic in entry["topics"])
        applies = "; ".join(f"{name}: {date}" for name, date in entry.get("applies", {}).items()) or "–"
        expected += [entry["title"], entry["basis"], topics, applies, ", ".join(entry["sections"])]
    assert shown == expected
    assert re.search(r"\b(ISO|IEC|NIST AI RMF|prEN|AI Act)\b", text.replace(section, "")) is None
    assert re.search(r"(?i)\bcompl(y|ies|iant)\b|\bconform|\bcertifie[sd]\b", text) is None
    assert f"{page.SUPPORT} As of {facts.standards()['date']}." in section


@pytest.mark.parametrize(
    ("fails_if", "expected", "excluded"),
    [
        ("overall(clean) < 0.5", {"MEASURE 2.5", "15(3)"}, {"15(5)", "MEASURE 2.7", "MEASURE 2.11", "11.1.3"}),
        ("overall(all) < 0.5", {"15(5)", "MEASURE 2.7", "11.1.3"}, {"MEASURE 2.5", "MEASURE 2.11"}),
        ("worst(all) < 0.1", {"15(5)", "MEASURE 2.11"}, {"MEASURE 2.5"}),
        ("worst(all).low < 0.1", {"15(5)", "MEASURE 2.11", "MEASURE 2.5"}, {"15(4)"}),
    ],
)
def test_each_criterion_names_the_topics_about_its_measure(
    fails_if: str, expected: set[str], excluded: set[str], report: build.Evidence
) -> None:
    (audit,) = report.facts["audits"]
    criterion = audit["criteria"][0] | {"fails_if": fails_if}
    found = page._clauses(report.facts | {"audits": [audit | {"criteria": [criterion]}]})
    named = {ref for ref in expected | excluded if re.search(rf"{re.escape(ref)}(?!\d)", str(found.rows[0].cells))}
    assert named == expected


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["evidence.html", "evidence.json", "policy.yaml", "../a/audit.json", "outcomes"])
def test_a_flipped_bit_is_found(name: str, report: build.Evidence) -> None:
    assert differences(report.folder) == []
    part = report.folder / "../a/outcomes/part-00000.parquet"
    flipped(part if name == "outcomes" else report.folder / name)
    (difference,) = differences(report.folder)
    assert "differs from its SHA-256" in difference


def edited(report: build.Evidence, name: str, change: Callable[[str], str]) -> list[str]:
    """The differences after a file and the manifest were changed together."""
    file, manifest = report.folder / name, report.folder / build.MANIFEST
    file.write_text(change(file.read_text()))
    content = json.loads(manifest.read_text())
    content["files"][name] = build._digest(file)
    manifest.write_text(json.dumps(content))
    return differences(report.folder)


def test_files_that_were_changed_with_the_manifest_are_found(report: build.Evidence) -> None:
    assert edited(report, "evidence.html", lambda text: text + " ") == [
        "evidence.html differs from the page that the audits and the policy give"
    ]
    edited(report, "evidence.html", lambda text: text[:-1])
    assert differences(report.folder) == []
    found = edited(report, "evidence.json", lambda text: text.replace('"verdict": "passed"', '"verdict": "failed"'))
    assert found[0] == "evidence.json: verdict differs from what the audits and the policy give"
    for change in (json.dumps, lambda facts: json.dumps({**facts, "schema_version": True}, indent=2)):
        found = edited(report, "evidence.json", lambda _, change=change: change(report.facts))  # type: ignore[misc]
        assert re.match("evidence.json(: schema_version differs| has the values that .*, but other bytes)", found[0])
    for damage in ('{"policy": ', "[]", "{"):
        (line,) = edited(report, "evidence.json", lambda _, damage=damage: damage)  # type: ignore[misc]
        assert "is damaged" in line
    (line,) = edited(report, "evidence.json", lambda _: "{}")
    assert "is damaged" in line


def test_a_page_that_names_another_version_is_compared(report: build.Evidence) -> None:
    edited(report, "evidence.json", lambda text: text.replace(f'"classwise": "{cw.__version__}"', '"classwise": "9.9"'))
    found = edited(report, "evidence.html", lambda text: text.replace("All criteria passed", "All are robust"))
    reason = f"it is of classwise 9.9, and this is {cw.__version__}"
    assert found == [f"evidence.html differs from the page that the audits and the policy give; {reason}"]


@pytest.mark.parametrize("audits", [[], [1], [{"folder": 1, "files": {}}], [{"folder": "a", "files": [1]}]])
def test_a_damaged_manifest_is_refused(audits: list[Any], report: build.Evidence) -> None:
    manifest = report.folder / build.MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"audits": audits}))
    check_refused("is damaged", build.verify, report.folder)


def test_another_policy_or_other_outcomes_are_found(report: build.Evidence, tmp_path: Path) -> None:
    found = edited(report, "policy.yaml", lambda text: text.replace("worst(all) < 0.1", "worst(all) < 0.3"))
    assert any("verdict differs" in line for line in found)
    assert any("criteria_recorded differs" in line for line in found)
    other = saved(tmp_path / "other")
    assert any("verdict differs" in line for line in differences(report.folder, [other]))
    check_refused("1 audits, but 2 are given", build.verify, report.folder, [other, other])


def test_files_that_are_missing_or_added_are_found(report: build.Evidence) -> None:
    part = report.folder / "../a/outcomes/part-00000.parquet"
    shutil.copy(part, part.with_name("part-00001.parquet"))
    assert "is not in the manifest" in differences(report.folder)[0]
    part.with_name("part-00001.parquet").unlink()
    report.page.unlink()
    assert "is missing" in differences(report.folder)[0]


def test_a_copied_report_is_verified_with_its_audits(report: build.Evidence, tmp_path: Path) -> None:
    copy = shutil.copytree(report.folder, tmp_path / "deep" / "copy")
    assert differences(copy, [shutil.copytree(tmp_path / "a", tmp_path / "elsewhere" / "a")]) == []
    with pytest.raises(IncompleteError, match="give its folder"):
        differences(copy)
    flipped(copy / build.PAGE)
    assert differences(copy) != []


def sentence(audit: Path, policy: Path, out: Path) -> str:
    return cw.evidence(audit, policy, out).facts["criteria_sentence"]


def test_the_strong_sentence_needs_the_policy_before_the_first_attack(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    audited_pairs(tmp_path / "1" / "a", file)
    assert sentence(tmp_path / "1" / "a", file, tmp_path / "e1") == facts.BEFORE
    other = written(tmp_path / "other.yaml", fail_if=["overall(all) < 0.8"])
    changed = f"{facts.AFTER} {facts.OTHER_RECORDED.format(name='a')}"
    assert sentence(tmp_path / "1" / "a", other, tmp_path / "e2") == changed
    begun = f"{facts.AFTER} {facts.NONE_RECORDED}"
    audited_pairs(tmp_path / "2" / "a")
    audited_pairs(tmp_path / "2" / "a", file, resume=True)
    assert sentence(tmp_path / "2" / "a", file, tmp_path / "e3") == begun.format(name="a"), "resumed with the policy"
    audited_pairs(tmp_path / "2" / "b", file, seed=1)
    assert sentence(tmp_path / "2" / "b", file, tmp_path / "e4") == begun.format(name="b"), "audited again"
    audited_pairs(tmp_path / "3" / "a", file, max_time=1e-9)
    for name in ("outcomes", CHECKSUMS):
        source = tmp_path / "2" / "a" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / "3" / "a" / name)
    (tmp_path / "3" / "a" / CHECKSUMS).unlink()
    assert (
        sentence(tmp_path / "3" / "a", file, tmp_path / "e5")
        == f"{facts.AFTER} {facts.OTHER_OUTCOMES.format(name='a')}"
    )


@pytest.mark.parametrize(
    ("field", "value"), [("model_hash", "0"), ("seed", 1), ("batch_size", 96), ("early_stop", False), ("cascade", True)]
)
def test_outcomes_of_another_model_or_with_other_settings_are_refused(
    field: str, value: object, tmp_path: Path
) -> None:
    file = written(tmp_path / "policy.yaml")
    audited_pairs(tmp_path / "a", file)
    part = tmp_path / "a" / "outcomes" / "part-00000.parquet"
    from classwise.auditing.outcomes import files

    frame, meta = files.read(part)
    changed: Any = {field: value} if field == "model_hash" else {"settings": {**meta.settings, field: value}}
    files.write(part, frame, dataclasses.replace(meta, **changed))
    check_refused(f"{field} differs", cw.evidence, tmp_path / "a", file, tmp_path / "evidence")


def test_a_folder_that_is_not_new_and_a_table_are_refused(report: build.Evidence, tmp_path: Path) -> None:
    check_refused("is not empty", cw.evidence, tmp_path / "a", tmp_path / "policy.yaml", report.folder)
    check_refused(
        "is not the folder of an audit",
        cw.evidence,
        tmp_path / "a" / "outcomes",
        tmp_path / "policy.yaml",
        tmp_path / "new",
    )
    check_refused("at least one", cw.evidence, [], tmp_path / "policy.yaml", tmp_path / "new")
