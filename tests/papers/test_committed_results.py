"""Committed results in docs/results/papers, and their pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from classwise.papers import catalogue
from classwise.papers.catalogue import EXPERIMENTS
from classwise.papers.page import paper_page
from classwise.papers.result import Result
from classwise.papers.store import Store

COMMITTED = Path(__file__).parents[2] / "docs/results/papers"
RESULTS = sorted((COMMITTED / "results").glob("*/*/*.json"))


@pytest.mark.parametrize("name", sorted({file.parts[-3] for file in RESULTS}))
def test_pages_equal_their_results(name: str, tmp_path: Path) -> None:
    """Regenerate with `classwise papers page --store docs/results/papers --out docs/results/papers`."""
    page = paper_page(name, Store(COMMITTED), tmp_path / "page.html")
    assert page.read_text(encoding="utf-8") == (COMMITTED / f"{name}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: "-".join(file.parts[-3:-1]))
def test_results_match_the_current_experiments(file: Path) -> None:
    """The setting equals that of the scale today, and the file contains no absolute paths."""
    result = Result.load(file)
    assert (result.item, f"{result.scale}.json") == ("/".join(file.parts[-3:-1]), file.name)
    assert result.setting == EXPERIMENTS.load(result.item).scales[result.scale].about
    assert all(catalogue.claim(verdict.claim)["id"] == verdict.claim for verdict in result.verdicts)
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", file.read_text(encoding="utf-8"))
