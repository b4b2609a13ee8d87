"""The README: its first example prints what it shows, and its commands run in order, on digits."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks

from ..options import with_options
from .conftest import QUICK, Classwise

README = ROOT / "README.md"


def commands(heading: str, document: Path = README) -> list[list[str]]:
    """The words of every ``classwise`` command below a heading, without comments."""
    part = document.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    classwise (.*)$", re.sub(r"\\\n\s*", "", part), re.MULTILINE)
    return [shlex.split(line.replace("$(git rev-parse HEAD)", "0123abc"), comments=True) for line in lines]


def test_it_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").split()) < 700


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_first_example(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints the numbers that the README shows, also those of the picture, at both precisions of gradients."""
    monkeypatch.chdir(tmp_path)
    example, output, *_ = blocks(README)
    text = example.text.replace('threat="Linf:0.1"', f'threat="Linf:0.1", precision="{precision}"')
    assert text != example.text
    space: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, README.name, "exec"), space)
    assert [line.rstrip() for line in printed.getvalue().splitlines()] == output.text.splitlines()
    page = " ".join(re.sub("<[^>]*>", "", Path("page.html").read_text(encoding="utf-8")).split())
    picture = re.findall(r'alt="[^:]*: (.*?) on the worst class, (.*?)"', README.read_text(encoding="utf-8"))
    assert picture == [("67.0 % robust accuracy overall, 38.5 %", "8")]
    assert "67.0 % robust accuracy overall, 38.5 % on the worst class (8)" in page.replace("\xa0", " ")


@pytest.mark.slow
def test_the_audits(classwise: Classwise, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run_folder, "runs/mine")
    folder, run = commands("Audit your classifier")
    assert folder[1] == "mypackage.nets:build"  # tests/cli/test_any_model.py runs such a command
    for _ in range(2):  # a build runs again
        said = classwise(*run, "--attack=pgd:steps=1", "--subset=20")
        assert said.status in (0, 1), said.err


@pytest.mark.slow
def test_the_trainings(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = commands("Train")
    assert [words[0] for words in ran] == ["train", "train", "audit", "audit", "compare"]
    quick = ["--attack=pgd:steps=1", "--subset=20"]
    extra = {"train": ["--data=digits", *QUICK[1:], "--epochs=1"], "audit": quick, "compare": []}
    for words in ran:
        said = classwise(*with_options(words, *extra[words[0]]))
        assert said.status == 0, said.err
    assert Path("compare.html").is_file()


def test_the_papers(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = commands("Reproduce a paper")
    assert [words[1] for words in ran] == ["show", "run", "page"]
    for words in ran:
        said = classwise(*(str(ROOT / word) if word == "docs/results/papers" else word for word in words))
        assert said.status == 0, said.err
    assert "not observed" in Path("build/pages/cfa23.html").read_text(encoding="utf-8")
