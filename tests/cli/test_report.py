from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from classwise.attacks import suites
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import parse_attacks
from classwise.reporting.exports import robustbench

from .conftest import Classwise

LABELS = np.arange(60) % 3


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    attacked = np.where(np.arange(60) % 4 == 0, (LABELS + 1) % 3, LABELS)
    outcomes = Outcomes.from_predictions(
        LABELS, clean=LABELS, attacks={"theirs": attacked}, class_names=["a", "b", "c"]
    )
    return Audit(outcomes, name="elsewhere").save(tmp_path / "audit")


def test_the_page_of_an_audit(classwise: Classwise, audit: Path) -> None:
    said = classwise("report", audit)
    assert (said.status, said.out) == (0, f"page: {audit / 'page.html'}\n")
    assert "theirs" in (audit / "page.html").read_text(encoding="utf-8")


def test_files_beside_a_page(classwise: Classwise, audit: Path, tmp_path: Path) -> None:
    printed = classwise("report", audit, "--out", tmp_path / "new" / "page.html", "--export=csv,md,png").printed
    assert (tmp_path / "new" / "page.html").is_file()
    files = [Path(line.removeprefix("file: ")) for line in printed.splitlines()[1:]]
    assert {file.suffix for file in files} == {".csv", ".md", ".png"}
    assert {file.parent for file in files} == {tmp_path / "new" / "files"}
    assert all(file.is_file() for file in files)


def test_raw_csv_leaves_names_unchanged(classwise: Classwise, tmp_path: Path) -> None:
    names = ["=1+1", "b", "c"]
    outcomes = Outcomes.from_predictions(LABELS, clean=LABELS, attacks={"theirs": LABELS}, class_names=names)
    folder = Audit(outcomes, name="elsewhere").save(tmp_path / "audit")
    for words, first in (([], "'=1+1"), (["--raw-csv"], "=1+1")):
        said = classwise("report", folder, "--export=csv", "--files", tmp_path / "files", *words)
        assert said.status == 0, said.err
        assert pd.read_csv(tmp_path / "files" / "classes.csv")["class"].tolist() == [first, "b", "c"]
    assert "--export csv" in classwise("report", folder, "--raw-csv").refusal


def test_a_folder_for_files_needs_their_forms(classwise: Classwise, audit: Path, tmp_path: Path) -> None:
    assert "--export csv,pdf" in classwise("report", audit, "--files", tmp_path / "new").refusal
    assert not (audit / "page.html").exists()


def test_an_unknown_form_leaves_nothing(classwise: Classwise, audit: Path, tmp_path: Path) -> None:
    assert "docx" in classwise("report", audit, "--out", tmp_path / "new" / "page.html", "--export=csv,docx").refusal
    assert not (tmp_path / "new").exists()


def test_robustbench_refuses_what_it_would_not_mean(classwise: Classwise, audit: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "Mine.json"
    said = classwise("report", audit, "--robustbench", target, "--out", tmp_path / "new" / "page.html")
    assert (said.status, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert "--robustbench FILE" in classwise("report", audit, "--robustbench-info", "venue=ICML 2020").refusal


def test_robustbench_of_an_audit(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suites.SUITES, "autoattack", {"standard": ("fgsm",)})
    monkeypatch.setitem(robustbench.CLASSES, "cifar10", 3)
    labels = np.arange(60) % 3
    attacked = np.where(np.arange(60) % 4 == 0, (labels + 1) % 3, labels)
    outcomes = Outcomes.from_predictions(labels, labels, {"fgsm": attacked}, ["a", "b", "c"], threat="Linf:8/255")
    specs = {"clean": None, **parse_attacks("autoattack").specs()}
    outcomes = Outcomes(outcomes.frame, dataclasses.replace(outcomes.meta.stating(early_stop=True), attacks=specs))
    folder = Audit(outcomes, name="aa").save(tmp_path / "audit")
    info = ["--robustbench-info", "dataset=cifar10", "--robustbench-info", "venue=ICML 2020"]
    printed = classwise("report", folder, "--robustbench", tmp_path / "Mine.json", *info).printed
    assert f"file: {tmp_path / 'Mine.json'}" in printed
    assert "link is for you to fill in" in printed
    assert "venue is" not in printed
    assert json.loads((tmp_path / "Mine.json").read_text(encoding="utf-8"))["autoattack_acc"] == "75.00"


@pytest.fixture
def cut_short(tmp_path: Path) -> Path:
    """An audit whose attack has judged the first 20 of 60 images; the rows of the rest are gone."""
    attacked = np.where(np.arange(60) % 4 == 0, (LABELS + 1) % 3, LABELS)
    whole = Outcomes.from_predictions(LABELS, clean=LABELS, attacks={"theirs": attacked}, class_names=["a", "b", "c"])
    rows = whole.frame[(whole.frame["attack"] == "clean") | (whole.frame["index"] < 20)]
    return Audit(Outcomes(rows, whole.meta), name="elsewhere").save(tmp_path / "cut")


def test_an_incomplete_audit_has_no_page_unless_it_is_asked_for(classwise: Classwise, cut_short: Path) -> None:
    said = classwise("report", cut_short)
    assert (said.status, said.out) == (3, "")
    assert said.err == (
        f"classwise: {cut_short}: the audit is incomplete: 40 of 60 images are not judged by every attack "
        "(not judged: theirs 40); continue it with classwise audit --resume, or write bounds with --allow-incomplete\n"
    )
    assert not (cut_short / "page.html").exists()
    said = classwise("report", cut_short, "--allow-incomplete", "--export=csv,md,png")
    assert said.status == 0
    assert "the page shows bounds" in said.err
    text = (cut_short / "page.html").read_text(encoding="utf-8")
    assert "Incomplete audit: 40 of 60 images are not judged under every attack" in text
    assert "between 25.0\u00a0% and 91.7\u00a0%" in text
    frame = pd.read_csv(cut_short / "files" / "attacks.csv").set_index("attack")
    assert frame.loc["all", "overall_lower_bound"] == 0.25
    assert frame.loc["all", "judged"] == 20
    assert "worst_class" not in frame
    assert {path.name for path in (cut_short / "files").iterdir()} == {
        f"{stem}.{kind}" for stem in ("classes", "attacks") for kind in ("csv", "md")
    } | {"classes.png"}
