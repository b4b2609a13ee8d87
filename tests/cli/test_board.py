from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .conftest import Classwise
from .test_compare import saved


@pytest.fixture
def audits(tmp_path: Path) -> list[Path]:
    return [saved(tmp_path / "plain", 0.9, 1), saved(tmp_path / "fair", 0.2, 2)]


def test_a_table_and_the_files(classwise: Classwise, audits: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "board"
    printed = classwise("board", *audits, "--out", out).printed
    title, _, *rows = printed.splitlines()
    assert title == "data not named, 300 images: accuracy in percent under a threat that is not stated, attacks pgd"
    assert [row.split()[:2] for row in rows[:2]] == [["1", "fair"], ["2", "plain"]]
    assert sorted(path.name for path in out.iterdir()) == ["board.csv", "board.json", "index.html"]
    assert f"file: {out / 'index.html'}" in rows
    again = classwise("board", out / "board.json", "--json")
    assert again.status == 0, again.err
    tables = json.loads(again.out)["tables"]
    assert [row["entry"]["name"] for row in tables[0]["rows"]] == ["fair", "plain"]


def test_names_and_extra_data(classwise: Classwise, audits: list[Path]) -> None:
    words = ["board", f"a={audits[0]}", f"b={audits[1]}", "--extra-data", "a=yes", "--extra-data", "b=no", "--json"]
    printed = classwise(*words).printed
    rows = json.loads(printed)["tables"][0]["rows"]
    assert {row["entry"]["name"]: row["entry"]["extra_data"] for row in rows} == {"a": True, "b": False}


def test_a_named_audit_beside_a_file(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of the file keeps its name."""
    monkeypatch.chdir(tmp_path)
    for place, name in enumerate(("plain", "fair")):
        saved(tmp_path / name, 0.4, place + 1)
    assert classwise("board", "mine=plain", "--out", "old").status == 0
    (table,) = classwise("board", "old/board.json", "new=fair", "--json").facts["tables"]
    assert {row["entry"]["name"] for row in table["rows"]} == {"mine", "new"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone"], "gone does not exist; expected an audit, a run, a folder of these"),
        (["a=plain", "a=fair"], "'a' names 2 sources; give each a name of its own"),
        (["plain", "--extra-data", "plain=maybe"], "--extra-data plain=maybe: expected yes or no"),
        (["plain", "--extra-data", "fair=no"], "unknown row 'fair'"),
        (["plain", "--confidence", "95"], "confidence"),
        (["plain", "--out", "file"], "file is a file; give a folder"),
    ],
)
def test_bad_input(
    words: list[str], message: str, classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "fair"):
        saved(tmp_path / name, 0.4, 1)
    Path("file").touch()
    assert message in classwise("board", *words).refusal


@pytest.mark.slow
def test_all_audits_of_runs(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "quick"
    shutil.copytree(run_folder, run, ignore=shutil.ignore_patterns("audits"))
    for name, attack in (("audit", "fgsm"), ("short", "pgd:steps=2")):
        words = ("--data=digits", f"--attack={attack}", "--subset=64", "--guards=off")
        said = classwise("audit", run, *words, "--out", run / "audits" / name)
        assert said.status == 0, said.err
        if name == "audit":
            assert names_in(classwise("board", run.parent, "--json").out) == [["quick"]]
    for source in (run, run.parent):
        said = classwise("board", source, "--json")
        assert names_in(said.out) == [["quick/audit"], ["quick/short"]]
    tables = json.loads(said.out)["tables"]
    entry = tables[0]["rows"][0]["entry"]
    assert (entry["network"], entry["guards"], entry["extra_data"]) == ("small-cnn, width 0.1", "off", False)
    assert len(entry["model_sha256"]) == 64


def names_in(text: str) -> list[list[str]]:
    """The names of the rows of each table."""
    return [[row["entry"]["name"] for row in table["rows"]] for table in json.loads(text)["tables"]]
