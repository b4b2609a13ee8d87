"""The citations of recipes, parts, attacks and suites; every paper is in the bibliography."""

from __future__ import annotations

import re

import pytest

from classwise.core.errors import ClasswiseError
from classwise.core.settings.bibliography import PAPERS, Paper
from classwise.training.citations import papers
from classwise.training.recipe_files import recipe_names


def keys(name: str) -> list[str]:
    return [paper.key for paper in papers(name)]


def test_the_papers_of_a_recipe_are_in_the_order_of_its_parts_without_duplicates() -> None:
    assert keys("cfa-trades") == ["zhang2019theoretically", "madry2018towards", "wei2023cfa"]
    assert keys("at-awp") == ["madry2018towards", "wu2020adversarial"]
    assert keys("n-fgsm") == ["madry2018towards", "dejorge2022make", "smith2017cyclical", "wong2020fast"]
    assert keys("he-mart") == ["wang2020improving", "pang2020boosting", "madry2018towards"]
    assert keys("faal") == ["madry2018towards", "zhang2024fairness"]
    assert keys("csr") == ["jin2025enhancing", "madry2018towards"]
    assert keys("standard") == ["goodfellow2016deep"]
    assert keys("he-cmp") == ["madry2018towards", "pang2020boosting", "tian2021intriguing"]
    assert keys("margins-larger") == ["madry2018towards", "wei2023cfa"]
    assert keys("robust-error") == ["madry2018towards", "benz2021robustness"]
    assert keys("effective-number") == ["madry2018towards", "cui2019class"]
    assert keys("auto-beta")[-1] == "tian2021analysis"
    assert keys("frontier")[:2] == ["madry2018towards", "dejorge2022make"]
    assert "wei2023cfa" in keys("frontier")
    assert keys("awp") == ["wu2020adversarial"]


def test_attacks_and_suites_are_cited_too() -> None:
    assert keys("tpgd") == ["tian2021analysis"]
    assert keys("fab") == ["croce2020minimally"]
    suite = ["croce2020reliable", "croce2021mind", "croce2020minimally", "andriushchenko2020square"]
    assert keys("autoattack") == suite
    assert PAPERS["carlini2017towards"].line().startswith("Carlini and Wagner, Towards Evaluating")
    assert PAPERS["madry2018towards"].line().startswith("Madry et al., ")


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_can_be_cited(name: str) -> None:
    assert all(re.fullmatch(r"[a-z]+\d{4}[a-z]+", key) for key in keys(name))


@pytest.mark.parametrize("paper", PAPERS.values(), ids=list(PAPERS))
def test_an_entry_is_valid_bibtex(paper: object) -> None:
    assert isinstance(paper, Paper)
    text = paper.bibtex()
    assert text.count("{") == text.count("}")
    assert text.startswith(f"@{paper.kind}{{{paper.key},\n  author = {{")
    assert paper.kind in ("inproceedings", "article", "book", "misc")
    assert str(paper.year) in paper.key


def test_an_unknown_name_raises_an_error() -> None:
    with pytest.raises(ClasswiseError, match="unknown recipe, part or attack 'cfa-tradess'; did you mean 'cfa-trades'"):
        papers("cfa-tradess")


def test_a_recipe_on_a_budget_is_cited_by_its_name() -> None:
    with pytest.raises(ClasswiseError, match="'at-short'; use at with --budget short"):
        papers("at-short")


def test_the_known_names_are_listed_once() -> None:
    with pytest.raises(ClasswiseError, match="known: ") as caught:
        papers("zzz")
    known = str(caught.value).partition("known: ")[2].split(", ")
    assert len(known) == len(set(known))
