from __future__ import annotations

from pathlib import Path

import pytest

from classwise.auditing.run.suite import CROSS_ENTROPY

from .conftest import Classwise

FAST = [
    "--attack=fgsm",
    "--attack=pgd:steps=2",
    "--attack=pgd:steps=3,objective=margin",
    "--batch-size=32",
    "--subset=150",
]


def test_the_answer_and_what_is_guaranteed(classwise: Classwise, run_folder: Path) -> None:
    printed = classwise("worst-class", run_folder, *FAST).printed
    facts = classwise("worst-class", run_folder, *FAST, "--json").facts
    worst = facts["worst"]
    assert f"worst class: {worst['class']}, {100 * worst['accuracy']:.1f} %" in printed
    assert f"guarantee: {facts['guarantee']}" in printed
    assert f"unsettled: {facts['unsettled']} images" in printed
    assert "passes: " in printed
    assert "with 95 % confidence" in facts["guarantee"]
    assert "these 150 images (digits test) under fgsm, pgd, pgd-margin at Linf:0.1 with seed 0" in facts["guarantee"]
    assert (facts["confidence"], facts["tolerance"], facts["settled"]) == (pytest.approx(0.95), 0.0, True)
    assert worst["class"] in worst["possibly"]
    assert facts["passes"] <= 1.01 * facts["full_audit_passes"]
    assert sum(row["n"] for row in facts["classes"].values()) == 150
    assert not (run_folder / "audits").exists()
    assert CROSS_ENTROPY not in printed


def test_attacks_on_the_cross_entropy_only_are_named(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert (
        CROSS_ENTROPY
        in classwise("worst-class", run_folder, "--attack=pgd:steps=1", "--subset=50", f"--html={page}").printed
    )
    assert CROSS_ENTROPY in page.read_text(encoding="utf-8")


def test_how_sure_and_how_near(classwise: Classwise, run_folder: Path) -> None:
    words = ["worst-class", run_folder, *FAST, "--json", "--tolerance=5%", "--confidence=0.9", "--seed=2"]
    facts = classwise(*words).facts
    assert (facts["confidence"], facts["tolerance"], facts["seed"]) == (pytest.approx(0.9), pytest.approx(0.05), 2)
    assert "with 90 % confidence" in facts["guarantee"]
    assert f"no class is more than 5 points below {facts['worst']['class']}" in facts["guarantee"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tolerance=much"], "--tolerance 'much' is not a number"),
        (["--tolerance=-1%"], "tolerance = -0.01: must be a number"),
        (["--batch-size=4"], "batch_size = 4"),
        (["--resume"], "--resume requires --out, the folder of the search"),
        (["--html=-", "--json"], "--json and a file named - both go to stdout"),
    ],
)
def test_bad_words(classwise: Classwise, run_folder: Path, words: list[str], said: str) -> None:
    answer = classwise("worst-class", run_folder, "--subset=50", *words)
    assert answer.status == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_a_search_in_a_folder(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    words = ["worst-class", run_folder, *FAST, "--json", f"--out={tmp_path / 'search'}"]
    found = classwise(*words).facts
    page = (tmp_path / "search" / "page.html").read_text(encoding="utf-8")
    assert found["guarantee"][1:] in page
    again = classwise(*words)
    assert again.status == 2
    assert "already contains this worst-class search with these settings: add --resume" in again.err
    loaded = classwise(*words, "--resume").facts
    assert loaded | {"seconds": 0} == found | {"seconds": 0}
    names = {"checksums.txt", "page.html", "rounds.parquet", "search.json"}
    assert {path.name for path in (tmp_path / "search").iterdir()} == names
