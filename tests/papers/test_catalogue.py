"""The items, the printed numbers and the notes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import make
from classwise.papers import catalogue
from classwise.papers.catalogue import experiment, runnable
from classwise.papers.experiments.protocol import HYPERSPHERE
from classwise.papers.page import write_pages
from classwise.papers.runner import run
from classwise.training import OBJECTIVES
from classwise.training.recipe import Recipe
from tests.refusals import check_refused

SHARED = Path(__file__).parents[2] / ".." / "shared" / "papers"
ITEMS = catalogue.items()
CLAIM = ("id", "claim", "quantity", "paper")


def test_ids_are_unique_and_name_their_paper() -> None:
    assert list(dict.fromkeys(item.paper for item in ITEMS.values())) == list(catalogue.papers())
    for paper in map(catalogue.paper, catalogue.papers()):
        names = [*(item.id for item in paper.items), *(claim.id for claim in paper.claims)]
        assert len(names) == len(set(names))
        assert all(name.startswith(f"{paper.id}/") for name in names)


@pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.id)
def test_each_item_has_a_status_and_a_command(item: catalogue.Item) -> None:
    if item.status == "missing":
        assert len(item.missing) > 15
        assert not item.command
    else:
        assert not item.missing
        assert item.command.startswith("classwise ")
    if item.status == "runnable":
        assert item.kind in {"table", "figure", "experiment", "plan"}
        assert not item.covered_by
        assert not item.absent


def test_every_experiment_is_created_for_its_item() -> None:
    assert all(experiment(name).item == name for name in runnable())


def test_parts_of_the_library_are_covered() -> None:
    for name in ("kdd21/D1", "kdd21/M5", "kdd21/A5", "kdd21/Q3", "cfa23/M9", "cfa23/A2", "cfa23/Th4", "iclr21/M5"):
        assert catalogue.find(name).status == "covered", name


def test_covered_items_name_the_right_part() -> None:
    assert catalogue.find("cfa23/M3").covered_by == ("recipe cfa-fat",)
    assert Recipe.read("cfa-fat").parts.objective == make(OBJECTIVES, {"name": "fat", "tau": [3], "milestones": []})
    assert HYPERSPHERE["HE"].overrides == {"objective.criterion.margin": 0}
    assert any(name.endswith(":HYPERSPHERE") for name in catalogue.find("iclr21/M3").covered_by)
    assert not any("training" in name for name in catalogue.find("benz20/Q1").covered_by), "a quantity, not a training"
    assert catalogue.find("iclr21/D1").covered_by[1].endswith("class_wise:sampled_classes")
    for name in ("D1", "D2", "D3", "D4", "D5", "D6"):
        kinds = [reference.partition(" ")[0] for reference in catalogue.find(f"kdd21/{name}").covered_by]
        assert kinds[:4] == ["data", "model", "recipe", "settings"]
    assert catalogue.present("settings kdd21:class-wise mnist")
    assert not catalogue.present("settings kdd21:class-wise minst")


def test_references() -> None:
    assert catalogue.present("recipe trades")
    assert not catalogue.present("recipe tradse")
    assert catalogue.find("kdd21/A1").covered_by == ("attack fgsm:random_init=uniform",)
    assert catalogue.find("kdd21/A1").command == "classwise attacks fgsm"
    assert catalogue.find("kdd21/T2").command == "classwise papers run kdd21/F2", "of both data sets"
    assert not catalogue.present("python classwise.nowhere.at_all:thing")
    assert not catalogue.present("python classwise.stats.metrics:no_such_metric")
    assert catalogue.present("facts iclr21:sampled_classes")


def test_every_note_has_items_and_a_text() -> None:
    assert len({note.id for note in catalogue.notes()}) == len(catalogue.notes())
    for note in catalogue.notes():
        assert note.items
        assert set(note.items) <= set(ITEMS)
        assert len(note.text) > 20
    assert [note.id for note in catalogue.find("kdd21/T3").notes][:2] == ["1.1", "1.2"]


@pytest.mark.parametrize(
    ("find", "name", "message"),
    [
        (catalogue.find, "kdd21/T11", "unknown item 'kdd21/T11'; did you mean 'kdd21/T1'"),
        (catalogue.paper, "kdd22", "unknown paper 'kdd22'; did you mean 'kdd21'"),
        (catalogue.claim, "cfa23/C99", "unknown claim 'cfa23/C99'"),
        (catalogue.present, "colour red", "reference 'colour red': unknown kind 'colour'; known are python, facts"),
    ],
)
def test_unknown_names(find: Callable[[str], object], name: str, message: str) -> None:
    check_refused(message, find, name)


def test_panels_find_their_figure() -> None:
    assert "Confidence analysis" in catalogue.printed("kdd21/F3b-d")["caption"]
    assert catalogue.printed("cfa23/F2bc") == catalogue.printed("cfa23/F2a") != {}
    assert catalogue.printed("kdd21/E3") == {}


ENTRY = """
- id: benz20/P1.12
  kind: plan
  section: '3.1'
  title: optimisers and weight decays together
  experiment: {name: weak_classes:Optimisation, varied: [optimisers, weight decays]}
  no_settings: a combination that the paper does not have
claims:
"""


def _with_entry(folder: Path, entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the papers from a folder in which benz20 has another item."""
    files = catalogue.paper_files()
    for name, file in files.items():
        text = file.read_text(encoding="utf-8")
        changed = text.replace("\nclaims:\n", entry) if name == "benz20" else text
        (folder / f"{name}.yaml").write_text(changed, encoding="utf-8")
    monkeypatch.setattr(catalogue, "paper_files", lambda: {name: folder / f"{name}.yaml" for name in files})
    for name in ("paper", "items"):
        monkeypatch.setattr(catalogue, name, functools.cache(getattr(catalogue, name).__wrapped__))


@pytest.mark.slow
def test_an_entry_adds_an_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment with other parameters needs nothing else to be listed, to run, and to be shown."""
    _with_entry(tmp_path, ENTRY, monkeypatch)
    assert "benz20/P1.12" in runnable()
    (result,) = run("benz20/P1.12", "smoke", tmp_path / "store")
    assert result.verdicts[0].covers == ("optimisers", "weight decays")
    assert "Adam" in {row.name for table in result.tables for row in table.rows}
    (page,) = write_pages(["benz20"], tmp_path / "store", tmp_path)
    assert "optimisers and weight decays together" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("  title: ", "  titel: a plan\n  title: "), ".titel = 'a plan': Unexpected keyword argument"),
        (("kind: plan", "kind: plane"), ".kind = 'plane': Input should be 'data set'"),
        (("weak_classes:Opt", "weak_classes:opt"), "unknown experiment in module"),
        (("varied:", "vary:"), "field 'vary'; did you mean 'varied'"),
        (("[optimisers, ", "[optimizers, "), "varied.0 = 'optimizers': Input should be 'optimisers'"),
        (("weak_classes:Optimisation", "classwise.papers.store:Store"), "is the class Store; give a subclass of"),
    ],
)
def test_a_wrong_entry(change: tuple[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_entry(tmp_path, ENTRY.replace(*change), monkeypatch)
    with pytest.raises(ClasswiseError) as error:
        experiment.__wrapped__("benz20/P1.12")
    assert message in str(error.value)


@pytest.mark.parametrize("paper", catalogue.papers())
def test_facts_equal_the_checked_ones(paper: str) -> None:
    path = SHARED / f"{paper}.yaml"
    if not path.exists():
        pytest.skip(f"the checked numbers are not available: {path.resolve()}")
    checked: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    facts = catalogue.paper(paper)
    printed = {entry["id"]: entry for entry in facts.printed}
    printed |= {item.id: {"id": item.id, **item.printed} for item in facts.items if isinstance(item.printed, dict)}
    assert printed == {entry["id"]: entry for key in ("tables", "figures") for entry in checked[key] or []}
    claims = [{key: getattr(claim, key) for key in CLAIM} for claim in facts.claims]
    assert claims[: len(checked["claims"])] == checked["claims"]  # further claims of the text follow
