"""The commands that the README prints, in the order in which it prints them, on digits."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from .conftest import QUICK, Classwise

README = Path(__file__).parents[2] / "README.md"


def commands(heading: str) -> list[list[str]]:
    """The words of every ``classwise`` command below a heading, without comments."""
    part = README.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    classwise (.*)$", part, re.MULTILINE)
    return [shlex.split(line.replace("$(git rev-parse HEAD)", "0123abc"), comments=True) for line in lines]


@pytest.mark.slow
def test_the_audits(classwise: Classwise, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run_folder, "runs/mine")
    audits = [words for words in commands("Audit your classifier") if words[1] == "runs/mine"]
    assert len(audits) == 5
    weaker = {"autoattack": "pgd:steps=1"}
    for words in [*audits, audits[-1]]:  # a build runs again
        cheap = [weaker.get(word, word) for word in words]
        extra = [] if "--attack" in words else ["--attack=pgd:steps=1"]
        said = classwise(*cheap, *extra, "--subset=20")
        assert said.status in ((0, 1) if "--fail-if" in words else (0,)), said.err


@pytest.mark.slow
def test_the_trainings(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = commands("Train")
    assert [words[0] for words in ran].count("train") == 3
    assert ran[-1][:3] == ["compare", "runs/at", "runs/cfa"]
    quick = [*QUICK, "--epochs=1"]
    extra = {"train": ["--data=digits", *quick], "audit": ["--attack=pgd:steps=1", "--subset=20"]}
    for words in ran:
        if words[0] in ("train", "audit", "compare"):
            said = classwise(*words, *extra.get(words[0], []))
            assert said.status == 0, said.err
    assert Path("compare.html").is_file()


def test_the_papers(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = commands("The papers")
    assert [words[1] for words in ran] == ["list", "show", "run", "page"]
    for words in ran:
        said = classwise(*words)
        assert said.status == 0, said.err
    assert "Not run yet" in Path("runs/papers/pages/cfa23.html").read_text(encoding="utf-8")
