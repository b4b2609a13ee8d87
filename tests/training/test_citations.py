"""The descriptions of parts, and the citations of recipes, parts, attacks and suites."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from classwise.attacks import ATTACKS
from classwise.core.files.storage import write_text
from classwise.core.settings.bibliography import PAPERS, Paper, line_of
from classwise.core.settings.config import make
from classwise.core.settings.description import CHANGES, Described, summary
from classwise.core.settings.registry import Registry
from classwise.training.citations import PARTS, papers, sources
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names

from ..refusals import refused


def keys(name: str) -> list[str]:
    return [paper.key for paper in papers(name)]


def test_the_papers_of_a_recipe_are_in_the_order_of_its_parts_without_duplicates() -> None:
    expected = {
        "cfa-trades": ["zhang2019theoretically", "madry2018towards", "wei2023cfa"],
        "at-awp": ["madry2018towards", "wu2020adversarial"],
        "n-fgsm": ["madry2018towards", "dejorge2022make", "smith2017cyclical", "wong2020fast"],
        "he-mart": ["wang2020improving", "pang2020boosting", "madry2018towards"],
        "faal": ["madry2018towards", "zhang2024fairness"],
        "csr": ["jin2025enhancing", "madry2018towards"],
        "standard": ["goodfellow2016deep"],
        "he-cmp": ["madry2018towards", "pang2020boosting", "tian2021intriguing"],
        "margins-larger": ["madry2018towards", "wei2023cfa"],
        "robust-error": ["madry2018towards", "benz2021robustness"],
        "effective-number": ["madry2018towards", "cui2019class"],
        "awp": ["wu2020adversarial"],
    }
    assert {name: keys(name) for name in expected} == expected
    assert keys("auto-beta")[-1] == "tian2021analysis"
    assert "wei2023cfa" in keys("frontier")
    assert keys("frontier")[:2] == ["madry2018towards", "dejorge2022make"]


def save_run(folder: Path, recipe: Recipe) -> str:
    folder.mkdir(parents=True)
    write_text(Run(folder).recipe_file, recipe.yaml(), checksum=True)
    return str(folder)


def test_the_papers_of_a_run_are_those_of_its_own_parts(tmp_path: Path) -> None:
    same = save_run(tmp_path / "same", Recipe.read("cfa-at", {"seed": 3}))
    changes: dict[str, Any] = {"schedules": [], "averaging": "none", "update": "awp"}
    other = save_run(tmp_path / "other", Recipe.read("cfa-at", changes))
    assert keys(same) == keys("cfa-at") == ["madry2018towards", "wei2023cfa"]
    assert keys(other) == ["madry2018towards", "wu2020adversarial"]
    seeds = tmp_path / "seeds"
    save_run(seeds / "seed-0", Recipe.read("trades"))
    assert keys(str(seeds)) == keys("trades")


def test_the_papers_of_a_file_are_those_of_its_own_parts(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: cfa-trades\nschedules: [dafa]\naveraging: none\n")
    assert keys(str(file)) == ["zhang2019theoretically", "madry2018towards", "lee2024dafa"]


def test_a_folder_without_a_run_and_a_missing_file_raise_errors(tmp_path: Path) -> None:
    assert "contains no run" in refused(papers, str(tmp_path))
    assert "does not exist" in refused(papers, str(tmp_path / "no.yaml"))


def test_a_part_has_precedence_over_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "fab", Recipe.read("trades"))
    assert keys("fab") == ["croce2020minimally"]
    assert keys("./fab") == keys("trades")


def test_attacks_and_suites_are_cited_too() -> None:
    assert keys("tpgd") == ["tian2021analysis"]
    assert keys("fab") == ["croce2020minimally"]
    suite = ["croce2020reliable", "croce2021mind", "croce2020minimally", "andriushchenko2020square"]
    assert keys("autoattack") == suite
    assert keys("classwise.attacks.gradient.ascent:PGD") == keys("pgd")
    assert PAPERS["carlini2017towards"].line().startswith("Carlini and Wagner, Towards Evaluating")
    assert PAPERS["madry2018towards"].line().startswith("Madry et al., ")


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_can_be_cited(name: str) -> None:
    assert all(re.fullmatch(r"[a-z]+\d{4}[a-z]+", key) for key in keys(name))


@pytest.mark.parametrize("paper", PAPERS.values(), ids=list(PAPERS))
def test_an_entry_is_valid_bibtex(paper: Paper) -> None:
    text = paper.bibtex()
    assert text.count("{") == text.count("}")
    assert text.startswith(f"@{paper.kind}{{{paper.key},\n  author = {{")
    assert paper.kind in ("inproceedings", "article", "book", "misc")
    assert str(paper.year) in paper.key


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cfa-tradess", "unknown recipe, part or attack 'cfa-tradess'; did you mean 'cfa-trades'"),
        ("at-short", "'at-short'; use at with --budget short"),
    ],
)
def test_an_unknown_name_raises_an_error(name: str, says: str) -> None:
    assert says in refused(papers, name)


def test_the_known_names_are_listed_once() -> None:
    known = refused(papers, "zzz").partition("known: ")[2].split(", ")
    assert len(known) == len(set(known))


REGISTERED = [(registry, name) for registry in PARTS for name in registry]
TRAINING = [(registry, name) for registry, name in REGISTERED if registry is not ATTACKS]


def ids(value: object) -> str:
    return value.kind if isinstance(value, Registry) else str(value)


@pytest.mark.parametrize(("registry", "name"), REGISTERED, ids=ids)
def test_the_sources_of_every_part_are_in_the_bibliography(registry: Registry[Any], name: str) -> None:
    part = registry.load(name)
    if isinstance(part, type):
        assert issubclass(part, Described)
        assert "source" in vars(part), "it is not that of its base class"
    assert {source.partition(",")[0] for source in sources(part)} <= set(PAPERS)
    assert summary(part)


def test_every_paper_is_a_source_of_a_part() -> None:
    used = {source.partition(",")[0] for registry, name in REGISTERED for source in sources(registry.load(name))}
    assert used | {"carmon2019unlabeled"} == set(PAPERS)  # of unlabelled images, which are a setting of the data


def test_a_source_is_a_line() -> None:
    assert line_of("madry2018towards, eq. 2.1").endswith(", 2018, eq. 2.1")
    assert line_of("a report of our own, 2026") == "a report of our own, 2026"


@pytest.mark.parametrize(("registry", "name"), TRAINING, ids=ids)
def test_every_part_of_training_has_an_example_that_builds_it(registry: Registry[Any], name: str) -> None:
    cls: Any = registry.load(name)
    if not isinstance(cls, type):
        return  # a plain function, whose name is its example
    assert issubclass(cls, Described)
    assert set(cls.changes) <= set(CHANGES)
    assert type(make(registry, cls.example)) is cls
