from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from classwise.auditing.compare import compare
from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit
from classwise.cli import comparing

from .conftest import Classwise

NAMES = ("cat", "dog", "fish")
LABELS = np.arange(300) % 3


def saved(folder: Path, wrong: float, seed: int) -> Path:
    """An audit of 300 images of which a share falls, cats twice as often."""
    chance = np.random.default_rng(seed).random(300) * np.where(LABELS == 0, 0.5, 1.0)
    attacked = np.where(chance < wrong, (LABELS + 1) % 3, LABELS)
    outcomes = Outcomes.from_predictions(LABELS, clean=LABELS, attacks={"pgd": attacked}, class_names=NAMES)
    return Audit(outcomes, name=folder.name).save(folder)


@pytest.fixture
def audits(tmp_path: Path) -> list[Path]:
    return [saved(tmp_path / "plain", 0.4, 1), saved(tmp_path / "fair", 0.2, 2)]


def test_side_by_side(classwise: Classwise, audits: list[Path]) -> None:
    said = classwise("compare", *audits)
    assert said.status == 0, said.err
    expected = compare([str(path) for path in audits])
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["plain", "fair"]
    for line, (_, row) in zip(lines[2:], expected.table.iterrows(), strict=False):
        assert f"[{100 * row['worst_low']:.1f}, {100 * row['worst_high']:.1f}]" in line
    (pair,) = expected.pairs
    assert f"{100 * pair.minima.value:+.1f} [" in said.out
    assert "fair minus plain" in said.out


def test_names_json_and_page(classwise: Classwise, audits: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said = classwise("compare", f"a={audits[0]}", f"b={audits[1]}", "--json", "--out", page, "--attack=pgd")
    assert said.status == 0, said.err
    facts = json.loads(said.out)
    assert list(facts["methods"]) == ["a", "b"]
    assert (facts["attack"], facts["methods"]["a"]["n"]) == ("pgd", 300)
    (pair,) = facts["pairs"]
    assert (pair["first"], pair["second"]) == ("b", "a")
    assert pair["minima"]["low"] <= pair["minima"]["value"] <= pair["minima"]["high"]
    assert list(pair["classes"]) == list(NAMES)
    assert page.stat().st_size < 500_000


def test_seeds_of_a_method(classwise: Classwise, tmp_path: Path) -> None:
    folders = [saved(tmp_path / f"{name}-{seed}", 0.3, seed) for name in "ab" for seed in range(3)]
    words = [f"{folder.name[0]}={folder}" for folder in folders]
    facts = json.loads(classwise("compare", *words, "--json").out)
    assert {name: row["seeds"] for name, row in facts["methods"].items()} == {"a": 3, "b": 3}


def test_a_folder_of_seeds_stands_for_its_runs(tmp_path: Path) -> None:
    for seed in (0, 1):
        (tmp_path / "runs" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "runs" / f"seed-{seed}" / "recipe.yaml").touch()
    assert comparing._seeds(str(tmp_path / "runs")) == [tmp_path / "runs" / "seed-0", tmp_path / "runs" / "seed-1"]
    assert comparing._seeds(str(tmp_path / "runs" / "seed-0")) == [str(tmp_path / "runs" / "seed-0")]


def test_other_images_do_not_compare(classwise: Classwise, audits: list[Path], tmp_path: Path) -> None:
    outcomes = Outcomes.from_predictions(LABELS[:90], clean=LABELS[:90], attacks={}, class_names=NAMES)
    other = Audit(outcomes, name="other").save(tmp_path / "other")
    page = tmp_path / "page.html"
    said = classwise("compare", audits[0], other, "--out", page)
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert not page.exists()
