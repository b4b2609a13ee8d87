"""Model cards: their metadata have the form of the Hub and the numbers of the report, and edited cards are found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import classwise as cw
from classwise.auditing.criteria.policy import Policy
from classwise.reporting.evidence import build
from classwise.reporting.evidence.facts import EvidenceFacts
from tests.auditing.test_criteria import POLICY, written

from .test_evidence import outcomes, saved

KEYS = {"license", "license_name", "metrics", "tags", "model-index"}
FORM: dict[str, tuple[set[str], set[str]]] = {
    "task": ({"type"}, {"name"}),
    "dataset": ({"type", "name"}, {"config", "split", "revision", "args"}),
    "metric": ({"type", "value"}, {"name", "config", "args", "verified"}),
}
"""Required and optional keys of the specification, https://github.com/huggingface/hub-docs/blob/main/modelcard.md."""


def metadata_of(text: str) -> dict[str, Any]:
    """The metadata of a card, checked against the specification."""
    found = re.match(r"---\n(.*?)\n---\n\n# ", text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = yaml.safe_load(found[1])
    assert KEYS >= data.keys() >= {"license", "metrics", "tags", "model-index"}
    for entry in data["model-index"]:
        assert entry.keys() == {"name", "results"}
        for result in entry["results"]:
            assert result.keys() == {"task", "dataset", "metrics"}
            parts = [("task", result["task"]), ("dataset", result["dataset"])]
            for kind, part in [*parts, *(("metric", metric) for metric in result["metrics"])]:
                required, optional = FORM[kind]
                assert required <= part.keys() <= required | optional
                assert all(isinstance(part[key], dict) for key in ("args",) if key in part)
            assert result["metrics"]
            assert re.fullmatch(r"[\w.-]+(/[\w.-]+)?", result["dataset"]["type"])
    return data


def reported(folder: Path, *audits: Path, **policy: Any) -> build.Evidence:
    file = written(folder / "policy.yaml", **({"fail_if": ["worst(all) < 0.1"]} | policy))
    return cw.evidence([*audits] or saved(folder / "a", Policy.read(file).digest), file, folder / "evidence", card=True)


def differences(report: build.Evidence) -> list[str]:
    return build.verify(report.folder).differences


def card_of(report: build.Evidence) -> str:
    return (report.folder / build.CARD).read_text(encoding="utf-8")


def expected(facts: EvidenceFacts) -> list[dict[str, Any]]:
    """The metrics of the only audit, from the facts."""
    (audit,) = facts["audits"]
    rows: list[dict[str, Any]] = []
    for kind, ending in (("clean", ""), ("robust", " under pgd at Linf:0.1")):
        for row in (audit["overall"], *audit["classes"]):
            found = row[kind]  # type: ignore[literal-required]
            of_class = {} if row is audit["overall"] else {"class": row["name"], "simultaneous": True}
            numbers = {"n": found["n"], "correct": found["count"]}
            ends = {"confidence": 0.95, "low": found["low"], "high": found["high"]}
            name = f"{kind} accuracy of {row['name']}{ending}"
            rows.append(
                {"type": "accuracy", "value": found["accuracy"], "name": name, "args": {**of_class, **numbers, **ends}}
            )
    return rows


def test_a_card_has_the_accuracies_of_the_report(tmp_path: Path) -> None:
    audit = saved(
        tmp_path / "a", model="hub/net", data="cifar10", split="test", data_hash="ab" * 32, model_hash="cd" * 32
    )
    report = reported(tmp_path, audit)
    data, text = metadata_of(card_of(report)), card_of(report)
    (entry,) = data["model-index"]
    (result,) = entry["results"]
    assert (entry["name"], data["license"]) == ("hub/net", "unknown")
    assert "datasets" not in data, "the Hub reads them as training data"
    dataset = {"name": "cifar10", "type": "uoft-cs/cifar10", "split": "test", "args": {"sha256": "ab" * 32}}
    assert result["dataset"] == dataset
    assert result["task"]["type"] == "image-classification"
    assert result["metrics"] == expected(report.facts)
    assert "| **scratch** | **30** | **100.0 [85.3–100.0; 30 of 30]** | **20.0 [6.1–42.5; 6 of 30]** |" in text
    threat = POLICY["threat_model"]
    assert report.facts["number"] in text
    digests = "ab" * 32, "cd" * 32, report.facts["policy"]["digest"]
    for part in (*threat.values(), *POLICY["limits"], *digests, "A stronger attack than those that were run."):
        assert part in text
    assert differences(report) == []
    listed = json.loads((report.folder / build.MANIFEST).read_text())["files"]
    assert listed.keys() == {build.PAGE, build.FACTS, build.POLICY, build.CARD}


def test_an_edited_card_is_found(tmp_path: Path) -> None:
    report = reported(tmp_path)
    card, manifest = report.folder / build.CARD, report.folder / build.MANIFEST
    before, listed = card_of(report), json.loads(manifest.read_text())
    edited = before.replace("value: 0.2", "value: 0.8")
    assert edited != before
    card.write_text(edited)
    assert differences(report) == [f"{card} differs from its SHA-256 in the manifest"]
    listed["files"][build.CARD] = build._digest(card)
    manifest.write_text(json.dumps(listed))
    assert differences(report) == ["README.md differs from the card that the audits and the policy give"]
    del listed["files"][build.CARD]
    manifest.write_text(json.dumps(listed))
    assert differences(report) == ["README.md differs from the card that the audits and the policy give"]
    card.unlink()
    assert differences(report) == []


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        (None, {"license": "unknown"}),
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("CC BY-NC-SA 4.0", {"license": "cc-by-nc-sa-4.0"}),
        ("Ours: ask first", {"license": "other", "license_name": "ours-ask-first"}),
        ("保留", {"license": "other"}),
    ],
)
def test_the_licence_of_the_model(tmp_path: Path, stated: str | None, found: dict[str, str]) -> None:
    report = reported(tmp_path, model={**POLICY["model"], **({} if stated is None else {"licence": stated})})
    data = metadata_of(card_of(report))
    assert {key: data[key] for key in ("license", "license_name") if key in data} == found
    assert (f"- Licence: {stated}" in card_of(report)) == (stated is not None)
    assert (stated or "unknown") in report.page.read_text() or stated is None


def test_names_are_data_in_a_card(tmp_path: Path) -> None:
    names = ["a\n---\n# b", "no: [x", "<script>|`"]
    audit = saved(tmp_path / "a", class_names=names, model="m\n---", data="../photos of: cats\n")
    report = reported(tmp_path, audit)
    data, text = metadata_of(card_of(report)), card_of(report)
    metrics = data["model-index"][0]["results"][0]["metrics"]
    assert [metric["args"].get("class") for metric in metrics[:4]] == [None, "a⟨U+000A⟩---⟨U+000A⟩# b", *names[1:]]
    assert text.count("\n---\n") == 1
    assert "<script>" not in text.partition("\n---\n")[2]
    assert "no: \\[x" in text


def test_several_and_incomplete_audits(tmp_path: Path) -> None:
    table = outcomes()
    frame = table.frame[(table.frame["attack"] == "clean") | (table.frame["index"] < 60)]
    part = cw.Audit(cw.Outcomes(frame, table.meta), name="part").save(tmp_path / "part")
    report = reported(tmp_path, saved(tmp_path / "a"), part)
    entries = metadata_of(card_of(report))["model-index"]
    assert [entry["name"] for entry in entries] == ["a", "part"]
    names = [metric["name"] for metric in entries[1]["results"][0]["metrics"]]
    assert names == [f"clean accuracy of {name}" for name in ("all images", "good", "scratch", "'dent' <b>")]
    assert card_of(report).count("Not all images are evaluated.") == 1
    assert "bounds" in card_of(report)
    assert differences(report) == []
