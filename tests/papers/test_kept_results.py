"""The results that the documents keep, and the pages beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from classwise.papers import catalogue
from classwise.papers.catalogue import EXPERIMENTS
from classwise.papers.page import paper_page
from classwise.papers.result import Result
from classwise.papers.store import Store

KEPT = Path(__file__).parents[2] / "docs/results/papers"
RESULTS = sorted((KEPT / "results").glob("*/*/*.json"))


@pytest.mark.parametrize("name", sorted({file.parts[-3] for file in RESULTS}))
def test_a_page_is_what_the_results_give(name: str, tmp_path: Path) -> None:
    """`classwise papers page --store docs/results/papers --out docs/results/papers` makes it again."""
    made = paper_page(name, Store(KEPT), tmp_path / "page.html")
    assert made.read_text(encoding="utf-8") == (KEPT / f"{name}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: "-".join(file.parts[-3:-1]))
def test_a_result_is_of_the_experiment_as_it_is(file: Path) -> None:
    """Its scale says what it says now, and it tells nothing of the machine that made it."""
    result = Result.load(file)
    assert (result.item, f"{result.scale}.json") == ("/".join(file.parts[-3:-1]), file.name)
    assert result.setting == EXPERIMENTS.load(result.item).scales[result.scale].about
    assert all(catalogue.claim(verdict.claim)["id"] == verdict.claim for verdict in result.verdicts)
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", file.read_text(encoding="utf-8"))
