from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from classwise.auditing.compare.compare import compare
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.cli.compare import comparison_facts

from .conftest import Classwise

NAMES = ("cat", "dog", "fish")
LABELS = np.arange(300) % 3


def saved(folder: Path, wrong: float, seed: int, **meta: Any) -> Path:
    """An audit of 300 images of which a share falls, cats twice as often."""
    chance = np.random.default_rng(seed).random(300) * np.where(LABELS == 0, 0.5, 1.0)
    attacked = np.where(chance < wrong, (LABELS + 1) % 3, LABELS)
    outcomes = Outcomes.from_predictions(LABELS, clean=LABELS, attacks={"pgd": attacked}, class_names=NAMES, **meta)
    return Audit(outcomes, name=folder.name).save(folder)


@pytest.fixture
def audits(tmp_path: Path) -> list[Path]:
    return [saved(tmp_path / "plain", 0.4, 1), saved(tmp_path / "fair", 0.2, 2)]


def test_side_by_side(classwise: Classwise, audits: list[Path]) -> None:
    printed = classwise("compare", *audits).printed
    expected = compare([str(path) for path in audits])
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["plain", "fair"]
    for line, (_, row) in zip(lines[2:], expected.table.iterrows(), strict=False):
        assert f"[{100 * row['worst_low']:.1f}, {100 * row['worst_high']:.1f}]" in line
    (pair,) = expected.pairs
    assert f"{100 * pair.minima.value:+.1f} [{100 * pair.minima.low:+.1f}, {100 * pair.minima.high:+.1f}]" in printed
    assert "fair minus plain" in printed


def test_names_json_and_page(classwise: Classwise, audits: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    facts = classwise("compare", f"a={audits[0]}", f"b={audits[1]}", "--json", "--out", page, "--attack=pgd").facts
    assert list(facts["methods"]) == ["a", "b"]
    assert (facts["attack"], facts["methods"]["a"]["n"]) == ("pgd", 300)
    selected = facts["selected"]
    assert (selected["models"], selected["worst"]["low"] < facts["methods"][selected["name"]]["worst_low"]) == (2, True)
    (pair,) = facts["pairs"]
    assert (pair["first"], pair["second"]) == ("b", "a")
    assert pair["minima"]["low"] <= pair["minima"]["value"] <= pair["minima"]["high"]
    assert list(pair["classes"]) == list(NAMES)
    assert page.stat().st_size < 500_000
    one, other = map(Audit.load, audits)
    warned = dataclasses.replace(one, warnings=(AuditWarning("noise", "It is noisy.", 1.0),))
    assert comparison_facts(compare({"a": warned, "b": other}))["warnings"] == [
        {"name": "noise", "sentence": "a: It is noisy."}
    ]


def test_head_middle_and_tail(classwise: Classwise, tmp_path: Path) -> None:
    counts = (30, 5, 10)
    folders = [
        saved(tmp_path / name, 0.3, seed, training_counts=counts) for seed, name in enumerate(("at", "robust-lt"))
    ]
    by_class, by_third = (
        classwise("compare", *folders, "--json", *group).facts["pairs"][0]["classes"]
        for group in ([], ["--group=frequency"])
    )
    assert by_third == {"head": by_class["cat"], "middle": by_class["fish"], "tail": by_class["dog"]}
    printed = classwise("compare", *folders, "--group=frequency").printed
    assert "worst frequency group" in printed
    assert "worst class" not in printed
    unknown = saved(tmp_path / "unknown", 0.3, 3)
    assert (
        "the training images of each class are not known"
        in classwise("compare", unknown, folders[0], "--group=frequency").refusal
    )


def test_seeds_of_a_method(classwise: Classwise, tmp_path: Path) -> None:
    folders = [saved(tmp_path / f"{name}-{seed}", 0.3, seed) for name in "ab" for seed in range(3)]
    words = [f"{folder.name[0]}={folder}" for folder in folders]
    facts = classwise("compare", *words, "--json").facts
    assert {name: row["seeds"] for name, row in facts["methods"].items()} == {"a": 3, "b": 3}


@pytest.mark.slow
def test_a_folder_of_seed_audits_is_one_method(classwise: Classwise, tmp_path: Path) -> None:
    for name in ("at", "cfa"):
        for seed in range(3):
            saved(tmp_path / name / f"seed-{seed}", 0.3 if name == "at" else 0.2, seed + 10 * (name == "cfa"))
    printed = classwise("compare", tmp_path / "at", tmp_path / "cfa").printed
    (pair,) = compare([tmp_path / "at", tmp_path / "cfa"]).pairs
    assert pair.seeds == (3, 3)
    assert "test over seeds and images" in printed
    assert printed.count("intervals cover new images and new training seeds") == 2
    facts = classwise("compare", tmp_path / "at", tmp_path / "cfa", "--json").facts
    (shown,) = facts["pairs"]
    assert (shown["seeds"], shown["test"]) == ([3, 3], pair.test)
    assert shown["p_value"] == pytest.approx(pair.p_value)
    assert facts["population"] == pair.population


def test_one_training_is_said_to_be_one(classwise: Classwise, audits: list[Path]) -> None:
    said = classwise("compare", *audits)
    assert "one training run of each method: intervals cover new images, not new training seeds" in said.out
    assert "(McNemar test, not adjusted for other comparisons" in said.out


def test_across_the_threat_there_is_no_test(classwise: Classwise, tmp_path: Path) -> None:
    folders = [saved(tmp_path / f"at-{radius}", 0.1 * radius, 1, threat=f"Linf:{radius}/255") for radius in (2, 4)]
    page = tmp_path / "page.html"
    assert (
        "'at-2' and 'at-4' differ in threat: Linf:2/255 and Linf:4/255"
        in classwise("compare", *folders, "--out", page).refusal
    )
    assert not page.exists()
    words = [f"at={folder}" for folder in folders]
    printed = classwise("compare", *words, "--across", "threat", "--out", page).printed
    assert "so no differences are computed or tested" in printed
    text = page.read_text(encoding="utf-8")
    for shown in (printed, text):
        assert "p =" not in shown
        assert "minus" not in shown
        assert "McNemar" not in shown
    assert "at: accuracy versus radius, percent" in text
    assert "A difference in accuracy may be due to the threat, the model or both" in text
    facts = classwise("compare", *words, "--across", "threat", "--json").facts
    assert (facts["across"], facts["levels"], facts["pairs"]) == ("threat", ["Linf:2/255", "Linf:4/255"], [])
    assert [row["threat"] for row in facts["rows"]] == facts["levels"]


def test_an_incomplete_audit_has_a_status_of_its_own(classwise: Classwise, audits: list[Path], tmp_path: Path) -> None:
    whole = Audit.load(audits[1])
    frame = whole.outcomes.frame
    lost = (frame["attack"] == "pgd") & (frame["index"] < 60)
    part = Audit(Outcomes(frame[~lost], whole.outcomes.meta), name="part").save(tmp_path / "part")
    page = tmp_path / "page.html"
    said = classwise("compare", audits[0], part, "--out", page)
    assert (said.status, said.err.count("\n"), said.out) == (3, 1, "")
    assert "'part' is incomplete: images not judged: 60 under pgd" in said.err
    assert "allow_incomplete=True (--allow-incomplete)" in said.err
    assert not page.exists()
    said = classwise("compare", audits[0], part, "--out", page, "--allow-incomplete")
    assert said.status == 0
    assert "warning: 'part' is incomplete" in said.err
    text = page.read_text(encoding="utf-8")
    for shown in (said.out, text):
        assert "240 of 300 images are judged in every audit under every compared attack" in shown
        assert "p =" not in shown
        assert "minus" not in shown
    right = int((~lost & (frame["attack"] == "pgd") & frame["correct"]).sum())
    assert f"{100 * right / 300:.1f}–{100 * (right + 60) / 300:.1f}" in said.out
    facts = classwise("compare", audits[0], part, "--json", "--allow-incomplete").facts
    assert (facts["complete"], facts["pairs"]) == (False, [])


def test_other_images_do_not_compare(classwise: Classwise, audits: list[Path], tmp_path: Path) -> None:
    outcomes = Outcomes.from_predictions(LABELS[:90], clean=LABELS[:90], attacks={}, class_names=NAMES)
    other = Audit(outcomes, name="other").save(tmp_path / "other")
    page = tmp_path / "page.html"
    said = classwise("compare", audits[0], other, "--out", page)
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert not page.exists()


def test_a_change_against_the_first_method_fails_a_build(classwise: Classwise, audits: list[Path]) -> None:
    (pair,) = compare([str(path) for path in reversed(audits)]).pairs  # plain minus fair
    limit = pair.minima.value
    assert limit < -0.05
    dog = float(pair.classes["difference"]["dog"])
    for text, status in (
        (f"worst(all) < {limit + 0.001}", 1),
        (f"worst(all) < {limit - 0.001}", 0),
        (f"overall(all).high < {pair.overall.high + 0.001}", 1),
        (f"overall(all).high < {pair.overall.high - 0.001}", 0),
        (f"dog(all) < {dog}", 0),
        (f"dog(all) <= {dog}", 1),
        (f"dog(all).low < {100 * float(pair.classes['low']['dog']) + 0.1}%", 1),
        ("mcd(all) > 1", 0),
    ):
        said = classwise("compare", *reversed(audits), "--fail-if", text)
        assert said.status == status, (text, said.err)
        assert (f"failed: fails if {text}, which is true (plain: " in said.err) == bool(status)
        assert (f"passed: fails if {text}, which is false (plain: " in said.out) != bool(status)
    said = classwise("compare", *audits, "--json", "--fail-if", "worst(all) > 0", "--fail-if", "worst(all) < 0")
    assert said.status == 1
    assert json.loads(said.out)["fail_if"] == {"worst(all) > 0": ["fair"], "worst(all) < 0": []}


def test_the_smallest_loss_that_fails_is_printed_and_written(
    classwise: Classwise, audits: list[Path], tmp_path: Path
) -> None:
    text, junit = "any(clean).high >= 0", tmp_path / "compare.xml"
    words = ["compare", *audits, "--require", text, "--require=overall(all).high >= 0", "--junit", junit]
    printed = classwise(*words).printed
    assert "; smallest loss in one class that could have failed this: 7.0 points)" in printed
    suite = ET.parse(junit).getroot()[0]
    assert [case.get("name") for case in suite.findall("testcase")] == [
        *(f"requires {text}: fair: {name}" for name in NAMES),
        "requires overall(all).high >= 0: fair",
    ]
    assert (suite.get("name"), suite.get("failures")) == ("comparison with plain", "0")
    assert "could have failed this: 7.0 points" in (suite[0].findtext("system-out") or "")
    losses = classwise("compare", *audits, "--require", text, "--json").facts["smallest_losses"]
    assert losses == {f"requires {text}": {"fair": dict.fromkeys(NAMES, 0.07)}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--junit=a.xml"], "--junit requires a condition"),
        (["--fail-if=worst(apgd) < 0"], "condition 'worst(apgd) < 0': unknown attack of 'plain'"),
        (["--fail-if=cats(all) < 0"], "did you mean 'cat'"),
        (["--fail-if=mcd(all).low < 0"], "unknown measure in condition 'mcd(all).low < 0': 'mcd.low'"),
        (["--fail-if=worst(all).mid < 0"], "did you mean 'worst.high'"),
        (["--fail-if=worst(all) < -2"], "limit -2 must be between -1 and 1"),
        (["--fail-if=worst(all) < 0", "--across=threat"], "--fail-if requires a comparison with the first method"),
        (["--export=csv", "--across=threat"], "--export requires a comparison"),
        (["--export=nosuch"], "unknown format 'nosuch'"),
        (["--files=here"], "--files requires --export"),
        (["--columns=worst", "--export=csv"], "--columns requires --export with a format other than csv"),
        (["--width=240", "--export=csv"], "--width requires --export png, pdf or svg"),
        (["--columns=wurst", "--export=md"], "unknown column 'wurst'; did you mean 'worst'"),
    ],
)
def test_bad_conditions_and_exports_are_one_line(
    classwise: Classwise, audits: list[Path], words: list[str], message: str
) -> None:
    assert message in classwise("compare", *audits, *words).refusal


def test_a_condition_requires_a_second_method(classwise: Classwise, audits: list[Path]) -> None:
    refusal = classwise("compare", audits[0], "--require=worst(all) >= 0").refusal
    assert refusal.endswith("a condition compares with the first method; give at least two methods")


def test_a_comparison_is_exported(classwise: Classwise, audits: list[Path], tmp_path: Path) -> None:
    printed = classwise("compare", *audits, "--export=csv,tex", "--files", tmp_path / "tables").printed
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {f"{stem}.{kind}" for stem in ("methods", "classes", "difference-fair") for kind in ("csv", "tex")}
    assert printed.count("file: ") == 6
    said = classwise("compare", *audits, "--export=md", "--out", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "files" / "methods.md").is_file(), said.err
