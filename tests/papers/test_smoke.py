"""All experiments at smoke scale, on one store."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from classwise.auditing.run.result import Audit
from classwise.cli.paper_results import _claim_lines, results_facts
from classwise.papers import catalogue
from classwise.papers.catalogue import runnable
from classwise.papers.claims import Answer, Verdict
from classwise.papers.page import write_pages
from classwise.papers.result import Evidence, Result
from classwise.papers.runner import scale_of
from classwise.papers.scales import NAMES
from classwise.papers.tables import claims_table
from classwise.reporting.tables import Cell
from tests.refusals import check_refused

from .conftest import Smoke


def test_experiments_share_models(smoke: Smoke) -> None:
    assert set(smoke.results) == set(runnable())
    everything = list(smoke.store.path.rglob("recipe.yaml"))  # runs without one class are inside their base run
    assert 0 < len(smoke.store.runs) <= len(everything)
    requested = sum(len(result.runs) for result in smoke.results.values())
    assert requested > len(smoke.store.runs)
    known = {path.parent.name for path in smoke.store.runs}
    assert all(set(result.runs) <= known for result in smoke.results.values())


@pytest.mark.parametrize("name", runnable())
def test_each_experiment_has_output_and_a_verdict(smoke: Smoke, name: str) -> None:
    result = smoke.results[name]
    assert result.tables or result.figures
    for table in result.tables:
        assert table.rows
        assert {len(row.cells) for row in table.rows} == {len(table.heads) - 1}
    assert result.verdicts or result.measurements
    assert not any(catalogue.claim(verdict.claim).question for verdict in result.verdicts)
    for measurement in result.measurements:
        assert catalogue.claim(measurement.question).claim
        assert np.isnan(measurement.low) or measurement.low <= measurement.value <= measurement.high
    for verdict in result.verdicts:
        assert catalogue.claim(verdict.claim).claim
        if verdict.answer == "supported":
            assert verdict.low > 0
        elif verdict.answer == "contradicted":
            assert verdict.high < 0 or verdict.exact
        else:
            assert np.isnan(verdict.low) or verdict.low <= 0
            assert verdict.note or np.isnan(verdict.low) or verdict.low <= 0 <= verdict.high or verdict.level < 0.05


@pytest.mark.parametrize("name", runnable())
def test_results_round_trip(smoke: Smoke, name: str, tmp_path: Path) -> None:
    smoke.results[name].save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == smoke.store.result_file(name, "smoke").read_bytes()


def test_texts_state_the_steps_that_pgd_ran(smoke: Smoke) -> None:
    """The two steps of the scale, or half as many in the item on fewer steps."""
    for name, result in smoke.results.items():
        texts = [text for table in result.tables for text in (table.caption, table.note, *table.heads)]
        texts += [text for figure in result.figures for text in (figure.caption, figure.svg)]
        assert {*re.findall(r"PGD-(\d+)", " ".join(texts))} <= {"1", "2"}, name


def test_table_1_equals_the_outcomes(smoke: Smoke) -> None:
    """Recomputed by pandas from the files of the audits."""
    audits = (smoke.run_of("kdd21/T1").path / "audits").glob("*/outcomes")
    frames = [pd.concat([pd.read_parquet(part) for part in sorted(folder.glob("*.parquet"))]) for folder in audits]
    fgsm = next(frame for frame in frames if "FGSM" in set(frame["attack"]))
    mean = fgsm[fgsm["attack"] == "FGSM"]["correct"].mean()
    row = next(row for row in smoke.results["kdd21/T1"].tables[0].rows if row.name == "Madry, FGSM")
    assert [cell.text for cell in row.cells[:2]] == [f"{100 * mean:.1f}", "65.5"]


def test_figures_of_cfa23_are_evaluated_at_the_last_iterate(smoke: Smoke) -> None:
    """As the other items, whereas AutoAttack and its substitutes in the tables stop at the first success."""
    for item, stops in (("cfa23/F5", False), ("cfa23/F7", False), ("cfa23/E1", False), ("cfa23/T2", True)):
        *_, key = smoke.results[item].runs  # of a model that no other item evaluates by the other rule, but for T2
        audits = (smoke.store.path / "runs" / key / "audits").glob("*")
        assert stops in {Audit.load(audit).outcomes.meta.early_stop for audit in audits}, item


def test_rankings_of_all_attacks_are_compared(smoke: Smoke) -> None:
    """kdd21/E3 measures the 20 rows of the printed table: four defences under five attacks, 190 pairs."""
    (table,) = smoke.results["kdd21/E3"].tables
    assert [(row.name, row.cells[0].text) for row in table.rows] == [("this run", "190"), ("kdd21/T1, printed", "190")]
    assert "FGSM starts at a random point" in smoke.results["kdd21/E3"].figures[0].caption


def test_every_claim_is_tested_by_some_item(smoke: Smoke) -> None:
    tested = {verdict.claim for result in smoke.results.values() for verdict in result.verdicts}
    tested |= {measurement.question for result in smoke.results.values() for measurement in result.measurements}
    claims = [claim.id for paper in catalogue.papers() for claim in catalogue.paper(paper).claims]
    same = {claim: {claim, *(other for other, _ in catalogue.claim_parts(claim))} for claim in claims}
    assert [claim for claim in claims if not tested & same[claim]] == []
    assert tested <= set(claims)


def test_claims_about_cifar_classes_are_not_tested_on_digits(smoke: Smoke) -> None:
    verdict = next(verdict for verdict in smoke.results["kdd21/T1"].verdicts if verdict.claim == "kdd21/C8")
    assert verdict.answer == "not tested"
    assert "CIFAR-10" in verdict.note


def test_the_theorems_hold(smoke: Smoke) -> None:
    assert [verdict.answer for verdict in smoke.results["cfa23/F1"].verdicts] == ["supported"] * 4
    assert len(smoke.results["cfa23/F1"].figures) == 2


@pytest.mark.parametrize("paper", catalogue.papers())
def test_pages(smoke: Smoke, paper: str, tmp_path: Path) -> None:
    (page,) = write_pages([paper], smoke.store.path, tmp_path)
    text = page.read_text(encoding="utf-8")
    items = [item for item in catalogue.items().values() if item.paper == paper]
    navigation = text[text.index("<nav") : text.index("</nav>")]
    assert text.index('id="claims"') < text.index('id="' + items[0].id)
    places = [text.index(f'id="{item.id}"') for item in items]
    assert places == sorted(places)
    assert len(text.encode()) < 500_000
    assert "http" not in text.replace("http://www.w3.org", "")
    for item in items:
        for note in item.notes:
            assert f"{note.id} ({note.kind})" in text
        assert (f'<a href="#{item.id}">' in navigation) == (item.status == "runnable")
    if paper == "cfa23":
        assert "<svg" in text
        assert "beta of TRADES" in text
        (bare,) = write_pages([paper], None, tmp_path)
        assert 'id="claims"' not in bare.read_text(encoding="utf-8")


COMMITTED = Path(__file__).parents[2] / "docs/results/papers/results"


def test_each_test_names_the_parts_of_its_claim(smoke: Smoke) -> None:
    """At this scale and in the committed results: tests name parts if and only if the claim has parts; reasons may."""
    results = [*smoke.results.values(), *(Result.load(file) for file in COMMITTED.glob("*/*/*.json"))]
    reached = set()
    for result in results:
        for verdict in result.verdicts:
            named = {part for claim, part in catalogue.claim_parts(verdict.claim) if claim == verdict.claim and part}
            if not verdict.estimand:
                assert {*verdict.covers} <= named, (result.item, verdict.claim)
                continue
            assert bool(verdict.covers) == bool(named), (result.item, verdict.claim)
            reached |= {(verdict.claim, part) for part in set(verdict.covers) & named}
            others = set(verdict.covers) - named
            elsewhere = all(part.partition(": ")[0] == "cifar10" for part in others)
            assert elsewhere or result.scale == "smoke", (result.item, verdict.claim, others)
    verdicts = [verdict for result in results for verdict in result.verdicts]
    tested = {verdict.claim for verdict in verdicts if verdict.covers and verdict.estimand}
    assert tested - {claim for claim, _ in reached} <= {"benz20/C5", "cfa23/C21", "iclr21/C16"}


def test_partly_tested_claims_in_json_and_terminal(smoke: Smoke) -> None:
    """kdd21/C23 has two parts in F5bc and one in E10."""
    half, other = smoke.results["kdd21/F5bc"], smoke.results["kdd21/E10"]
    verdicts = [verdict for verdict in half.verdicts if verdict.claim == "kdd21/C23"]
    assert verdicts
    (facts,) = results_facts([half])
    plain, *_ = (verdict for verdict in facts["verdicts"] if verdict["claim"] == "kdd21/C23")
    if verdicts[0].estimand:
        assert plain["answer"] == "partly tested"
        assert plain["not_tested"] == ["standard training"]
        assert any("C23 by this item alone: partly tested" in line for line in _claim_lines([half]))
        both = [verdict for facts in results_facts([half, other]) for verdict in facts["verdicts"]]
        both = [verdict for verdict in both if verdict["claim"] == "kdd21/C23"]
        assert [verdict["not_tested"] for verdict in both] == [[]] * len(both) == [[]] * 3
        assert {verdict["text"] for verdict in both} == {"smoke run, no evidence"}


LEVEL = Evidence(scale="small", trainings=1, epochs=(12,))
HALVES: tuple[tuple[Answer, str], ...] = (("supported", "a number"), ("inconclusive", ""))


def test_claims_table(smoke: Smoke) -> None:
    """One answer with its items, several answers, and the answer of an equivalent claim of another paper."""

    def answered(item: str, claim: str, answer: Answer, estimand: str = "a number", covers: str = "") -> Result:
        parts = (covers,) if covers else ()
        verdicts = (Verdict(claim=claim, answer=answer, estimand=estimand, covers=parts),)
        return dataclasses.replace(smoke.results[item], verdicts=verdicts, evidence=LEVEL)

    def at_smoke(result: Result) -> Result:
        return dataclasses.replace(result, evidence=dataclasses.replace(LEVEL, scale="smoke"))

    half, other_half = (answered("kdd21/F2", "kdd21/C22", answer, of) for answer, of in HALVES)
    two_halves = dataclasses.replace(half, verdicts=(*half.verdicts, *other_half.verdicts))
    found = {
        "kdd21/F4a": [answered("kdd21/F4a", "kdd21/C19", "supported")],
        "kdd21/F4b": [answered("kdd21/F4b", "kdd21/C19", "supported")],
        "kdd21/F5bc": [
            answered("kdd21/F5bc", "kdd21/C16", "supported", covers="animals and transportation"),
            at_smoke(answered("kdd21/F5bc", "kdd21/C16", "contradicted", covers="animals and transportation")),
        ],
        "kdd21/E10": [answered("kdd21/E10", "kdd21/C16", "inconclusive", covers="classes 3 and 4")],
        "kdd21/T1": [],
        "kdd21/F2": [two_halves],
        "kdd21/F5a": [answered("kdd21/F5a", "kdd21/C19", "inconclusive", estimand="")],  # names the item that tests it
    }
    rows = {row.name: row for row in claims_table("kdd21", found).rows}
    assert rows["C19"].cells[3:] == [
        Cell("small", "1 training, 12 epochs"),
        Cell("supported at small scale", "kdd21/F4a, kdd21/F4b"),
    ]
    assert rows["C19"].good
    both = "animals and transportation: supported at small scale: kdd21/F5bc; "
    both += "classes 3 and 4: inconclusive at small scale: kdd21/E10"
    assert rows["C16"].cells[-1] == Cell("supported at small scale; inconclusive at small scale", both)
    assert not rows["C16"].good
    assert not rows["C22"].good  # the untested half of an item counts
    assert rows["C1"].cells[-1] == Cell("not tested yet")
    other = {row.name: row for row in claims_table("iclr21", found).rows}
    assert other["C3"].cells[-1] == rows["C19"].cells[-1]


@pytest.mark.parametrize(
    ("item", "scale", "message"),
    [
        ("kdd21/T1", "redused", "unknown scale 'redused'; did you mean 'reduced'"),
        ("cfa23/T4", "small", "cfa23/T4 has no scale 'small'; available: smoke, medium, full"),
        ("kdd21/M3", "smoke", "kdd21/M3 is a method and does not run by itself; see classwise recipes show"),
        ("kdd21/T9", "smoke", "kdd21/T9 cannot run yet; not in this version: masks by hand"),
    ],
)
def test_bad_scales(item: str, scale: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = dataclasses.replace(catalogue.find("kdd21/T4"), id="kdd21/T9", experiment="", absent="masks by hand")
    items = {**catalogue.items(), waiting.id: waiting}
    monkeypatch.setattr(catalogue, "items", lambda: items)
    check_refused(message, scale_of, item, scale)


def test_names_of_scales() -> None:
    assert NAMES == ("smoke", "small", "reduced", "medium", "full")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"a.json is damaged; run its item again"),
        ('{"schema_version": 7}', "schema_version 7 is newer than the 3 supported here"),
    ],
)
def test_damaged_results(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    check_refused(message, Result.load, tmp_path / "a.json")
