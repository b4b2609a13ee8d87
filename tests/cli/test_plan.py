from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import classwise as cw
from classwise.auditing.power_plan import plan
from classwise.core.progress.listener import NullProgress

from .conftest import Classwise

WORST = ("--worst=30%", "--others=60%", "--classes=4", "--attack=pgd:steps=3")
NAMES = ("cat", "dog", "owl")


@pytest.fixture
def audits(tmp_path: Path) -> dict[str, Path]:
    """Audits of two methods, and of three seeds of a third one, on 60 images of each class."""
    labels = np.repeat(np.arange(3), 60)
    rng = np.random.default_rng(0)

    def saved(name: str, accuracy: list[float]) -> Path:
        right = np.arange(180) % 60 < 60 * np.array(accuracy)[labels] + rng.integers(-2, 3, 180)
        outcomes = cw.Outcomes.from_predictions(
            labels, labels, {"pgd": np.where(right, labels, (labels + 1) % 3)}, class_names=NAMES
        )
        return cw.Audit(outcomes, name=name).save(tmp_path / name)

    for seed in range(3):
        saved(f"seeds/seed-{seed}", [0.3 + 0.03 * seed, 0.6, 0.7])
    return {
        "at": saved("at", [0.3, 0.6, 0.7]), "ours": saved("ours", [0.5, 0.6, 0.7]), "seeds": tmp_path / "seeds"
    }  # fmt: skip


@pytest.mark.slow
def test_a_table_a_chart_and_a_page(classwise: Classwise, tmp_path: Path) -> None:
    printed = classwise("plan", *WORST, "--above=20%", "--identity", "--html", tmp_path / "page.html").printed
    _, heads, *rows = printed.splitlines()
    assert heads.split() == ["question", "target", "images", "a", "class", "power", "runs", "passes"]
    assert [row.split("  ")[0] for row in rows[:4]] == ["worst class above 20 %"] * 2 + ["which class is the worst"] * 2
    assert any("█" in row and row.endswith("%") for row in rows)
    assert "Class accuracies (assumed): 30.0 to 60.0 %." in rows
    assert any(row.startswith("The chart is smoothed: ") for row in rows)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Power by images a class" in page
    assert printed.endswith(f"page: {tmp_path / 'page.html'}\n")


def test_the_chart_contains_the_images_of_the_audit(classwise: Classwise, audits: dict[str, Path]) -> None:
    """Far from the targets its other points are of few test sets: at 60 images it must not contradict the table."""
    said = classwise("plan", audits["at"], "--above=20%", "--attack=pgd:steps=3", "--json")
    facts, (curve,) = said.facts, said.facts["curves"]
    (row,) = [row for row in facts["rows"] if row["target"] is None]
    assert dict(zip(curve["images"], curve["power"], strict=True))[60] == pytest.approx(row["power"], abs=0.03)
    assert curve["power"] == sorted(curve["power"])
    assert "simulated test sets, worst class above 20 %, 1 run" in said.err


def test_json_and_passes(classwise: Classwise) -> None:
    facts = classwise("plan", *WORST, "--below=40%", "--class=0", "--images=100", "--json").facts
    (row,) = facts["rows"]
    assert (row["question"], row["target"], row["images"], row["expected"]) == ("class 0 below 40 %", None, 100, None)
    # PGD takes one clean pass, three steps of two passes, and two verifications.
    assert row["passes"] == 4 * 100 * (1 + 3 * 2 + 2)
    assert 0 < row["power"] < 1
    assert not facts["curves"]


@pytest.mark.slow
def test_an_earlier_audit(classwise: Classwise, audits: dict[str, Path]) -> None:
    printed = classwise("plan", audits["at"], "--above=20%", "--json").printed
    given, first, second = json.loads(printed)["rows"]
    assert (given["target"], given["images"], given["passes"]) == (None, 60, None)
    assert 60 < first["images"] < second["images"]
    assert given["power"] < first["power"] < second["power"]
    assert 0 < first["expected"] < first["power"], "the pilot leaves the accuracy open"


@pytest.mark.slow
def test_two_methods_are_compared(audits: dict[str, Path]) -> None:
    """At their own difference, in any order; a shift is asked of the one with the lower worst class."""
    found = plan({"ours": str(audits["ours"]), "at": str(audits["at"])}, images=200, repetitions=10)
    again = plan({"at": str(audits["at"]), "ours": str(audits["ours"])}, images=200, repetitions=10)
    assert found.rows == again.rows
    (row,) = found.rows
    assert row.question.startswith("worst classes differ by")
    assert row.question.endswith("points, as estimated")
    assert row.power == pytest.approx(1, abs=0.3)
    assert found.assumptions[1].endswith("of the images (from the audits).")


def test_seeds_show_how_runs_differ(audits: dict[str, Path]) -> None:
    found = plan([str(audits["seeds"])], half_width=0.1, images=100, seeds=[2, 5], repetitions=20)
    assert [row.seeds for row in found.rows] == [2, 5]
    assert found.rows[0].power < found.rows[1].power
    assert "from the audits" in found.assumptions[2]
    assert str(found).splitlines()[0].startswith("Images of a class")
    assert repr(found).startswith("<PowerPlan overall accuracy to ±10 points: 100 images a class, power")


def test_a_plan_repeats(audits: dict[str, Path]) -> None:
    first, second = (plan(str(audits["at"]), identity=True, repetitions=50).to_dict() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--above=20%"], "give audits, --accuracy, or --worst, --others and --classes; one of the three"),
        (["--worst=0.3"], "--worst requires --others and --classes"),
        ([*WORST], "no question is given; give one: above, below, difference"),
        ([*WORST, "--above=10%", "--class=1"], "only below and half_width are about one class"),
        ([*WORST, "--above=2"], "above = 2.0: must be a number above 0 and below 1"),
        ([*WORST, "--above=x"], "--above 'x' is not a number; write 0.2 or 20%"),
        ([*WORST, "--above=40%"], "above 0.4: the lowest class accuracy is 0.3, so no number of images can show it"),
        ([*WORST, "--below=20%"], "below 0.2: the accuracy of class 0 is 0.3"),
        (["--accuracy=0.3,0.3", "--identity"], "identity: several classes have the lowest accuracy"),
        (["--accuracy=0.3,1.5", "--identity"], "must be a list of values, each a number from 0 to 1"),
        ([*WORST, "--below=40%", "--class=9"], "unknown class '9'; known: 0, 1, 2, 3"),
        ([*WORST, "--identity", "--seeds=3"], "identity is a question about one training run"),
        ([*WORST, "--identity", "--seeds=3,3"], "--seeds '3,3' should be different whole numbers"),
        ([*WORST, "--identity", "--attack=pdg"], "unknown attack 'pdg'; did you mean 'pgd'?"),
        ([*WORST, "--identity", "--images=10000000"], "images: 40,000,000 outcomes of a model; at most 20,000,000"),
        (["missing", "--identity"], "missing contains no outcomes"),
        ([*WORST, "--above=20%", "--different=10%"], "different: only differences, and several seeds, depend on it"),
        ([*WORST, "--above=20%", "--run-sd=3%"], "run_sd: one training run has no deviation"),
    ],
)
def test_bad_input(words: list[str], message: str, classwise: Classwise) -> None:
    assert message in classwise("plan", *words).refusal


def test_a_threat_without_attacks_is_refused_beside_audits(classwise: Classwise, audits: dict[str, Path]) -> None:
    message = "threat: the audits have their own; omit it, or give attacks"
    assert message in classwise("plan", audits["at"], "--above=20%", "--threat=L2:1").refusal


def test_each_answer_is_logged_before_the_next_one() -> None:
    lines: list[str] = []

    class Listener(NullProgress):
        def log(self, line: str) -> None:
            lines.append(line)

    found = plan(accuracy=[0.3, 0.6], above=0.2, seeds=(1, 3), images=80, repetitions=50, progress=Listener())
    shares = found.table["power"].tolist()
    assert lines == [
        f"worst class above 20 %, {runs}: power {share:.0%} with 80 images a class"
        for runs, share in zip(("1 run", "3 runs"), shares, strict=True)
    ]
