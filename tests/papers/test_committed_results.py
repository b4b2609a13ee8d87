"""Committed results in docs/results/papers, and the pages made from them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from markupsafe import escape

from classwise.papers import catalogue
from classwise.papers.catalogue import experiment
from classwise.papers.page import paper_page
from classwise.papers.result import Result
from classwise.papers.store import Store

COMMITTED = Path(__file__).parents[2] / "docs/results/papers"
RESULTS = sorted((COMMITTED / "results").glob("*/*/*.json"))


@pytest.mark.parametrize("name", catalogue.papers())
def test_no_page_says_more_than_its_evidence(name: str, tmp_path: Path) -> None:
    """Results at reduced scale neither hold nor fail: claims are supported, not observed or inconclusive."""
    page = paper_page(name, Store(COMMITTED), tmp_path / "page.html").read_text(encoding="utf-8")
    own = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    for claim in catalogue.paper(name).claims:
        own = own.replace(str(escape(claim.paper)), "")  # the words of the paper
    assert not re.search(r"\b(holds|hold|refuted?|confirmed)\b", own)
    assert f"{name}/" in page


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: "-".join(file.parts[-3:-1]))
def test_results_match_the_current_experiments(file: Path) -> None:
    """The setting equals that of the scale today, and the file contains no absolute paths."""
    result = Result.load(file)
    assert (result.item, f"{result.scale}.json") == ("/".join(file.parts[-3:-1]), file.name)
    assert result.setting == experiment(result.item).scales[result.scale].about
    assert all(catalogue.claim(verdict.claim).id == verdict.claim for verdict in result.verdicts)
    assert {key: result.to_json()[key] for key in ("evidence", "verdicts", "measurements")} == {
        key: json.loads(file.read_text(encoding="utf-8"))[key] for key in ("evidence", "verdicts", "measurements")
    }
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", file.read_text(encoding="utf-8"))
