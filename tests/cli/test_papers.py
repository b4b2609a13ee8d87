from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Classwise


def test_list(classwise: Classwise) -> None:
    said = classwise("papers", "list", "--json")
    assert said.status == 0
    items = json.loads(said.out)
    assert len(items) == 150
    assert all(item["status"] in {"runnable", "covered", "missing"} for item in items)
    assert all(bool(item["command"]) != bool(item["missing"]) for item in items)
    by_id = {item["id"]: item for item in items}
    assert by_id["kdd21/T1"]["scales"] == ["smoke", "reduced", "full"]
    assert by_id["cfa23/M7"]["covered_by"] == ["schedule ccr"]
    said = classwise("papers", "list", "benz20")
    assert len(said.out.splitlines()) == 31


def test_show(classwise: Classwise) -> None:
    said = classwise("papers", "show", "kdd21/T3")
    assert said.status == 0
    assert "HE, 1/T = 50" in said.out
    assert "note 1.1 (misprint)" in said.out
    assert "scale reduced" in said.out
    shown = json.loads(classwise("papers", "show", "kdd21/T3", "--json").out)
    assert shown["printed"]["rows"][0]["tot"] == 51.8
    assert len(shown["notes"]) == 9


def test_run_and_page(classwise: Classwise, tmp_path: Path) -> None:
    store = tmp_path / "store"
    said = classwise("papers", "run", "cfa23/F1", "--store", store)
    assert said.status == 0
    assert "cfa23/C4 supported by exact computation: " in said.out
    assert "note 7.1" in said.out
    said = classwise("papers", "run", "cfa23/F1", "--store", store, "--json")
    (shown,) = json.loads(said.out)
    assert (shown["item"], shown["evidence"]["scale"]) == ("cfa23/F1", "smoke")
    verdict = shown["verdicts"][0]
    assert (verdict["answer"], verdict["text"]) == ("supported", "supported by exact computation")
    said = classwise("papers", "page", "cfa23", "--store", store)
    assert said.out == f"page: {store}/pages/cfa23.html\n"
    assert "Optimal weights" in (store / "pages" / "cfa23.html").read_text(encoding="utf-8")
    lost = tmp_path / "stroe"
    said = classwise("papers", "page", "cfa23", "--store", lost)
    assert (said.status, said.err) == (2, f"classwise: no store at {lost}; papers run ID --store {lost} makes one\n")
    assert not lost.exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["shwo", "kdd21/T1"], "unknown action of papers 'shwo'; did you mean 'show'"),
        (["show", "kdd21/T33"], "unknown item 'kdd21/T33'; did you mean 'kdd21/T3'"),
        (["run"], "papers run: name an item"),
        (["run", "cfa23/F1", "--scale", "smok"], "unknown scale 'smok'; did you mean 'smoke'"),
        (["show", "kdd21/T1", "--scale", "big"], "papers show takes no --scale; it takes --json"),
        (["page", "kdd21", "--json"], "papers page takes no --json; it takes --store and --out"),
        (["run", "cfa23/Th1"], "cfa23/Th1 is a theorem and does not run by itself"),
        (["list", "kdd20"], "unknown paper 'kdd20'; did you mean 'kdd21'"),
        (["page", "cfa32"], "unknown paper 'cfa32'; did you mean 'cfa23'"),
    ],
)
def test_bad_input_is_one_line(classwise: Classwise, words: list[str], line: str) -> None:
    said = classwise("papers", *words)
    assert (said.status, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert line in said.err


def test_data_that_are_not_there(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which data, and where to put them."""
    monkeypatch.setenv("CLASSWISE_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("classwise.data.loading._fetch", _no_network)
    monkeypatch.setattr("classwise.data.loading.data_directories", lambda root: [tmp_path / "nothing"])
    said = classwise("papers", "run", "kdd21/T1", "--scale", "reduced", "--store", tmp_path / "store")
    assert said.status == 2
    assert said.err.splitlines()[-1].startswith("classwise: cifar10 (train) is not in")
    assert "days" not in said.err
    said = classwise("papers", "run", "kdd21/T1", "--scale", "full", "--store", tmp_path / "store")
    assert said.err.startswith("full scale on a CPU takes days per network")
    assert said.status == 2


def _no_network(known: object, target: Path, looked: str) -> None:
    from classwise.core.errors import ClasswiseError

    raise ClasswiseError(f"{looked}; get it elsewhere and set CLASSWISE_DATA to its folder")
