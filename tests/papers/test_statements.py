"""Texts and numbers of the pages and of the terminal, recomputed from the raw numbers of random results."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from classwise.cli.paper_results import show_result
from classwise.cli.papers import STORE, list_items
from classwise.papers.catalogue import experiment, runnable
from classwise.papers.page import paper_page
from classwise.papers.store import Store

from .page_tables import (
    check_claims,
    check_estimate,
    check_measured,
    check_measurements,
    check_printed,
    check_table,
    check_verdicts,
)
from .page_texts import (
    SEEN,
    STATEMENTS,
    Page,
    Place,
    Section,
    check,
    deviations_of,
    first_with_deviations,
    printed_of,
)
from .statements import (
    Paper,
    Shown,
    is_question,
    notes_of,
    rows_of,
    words_of,
)
from .strategies import papers
from .whole_claims import all_texts

CHECKED_HERE: set[str] = set()
"""What this process has checked; pytest-xdist distributes the tests over several."""
QUICK = settings(max_examples=40, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)


def check_section(paper: Paper, section: Section) -> None:
    """Check the texts and tables of an item: its results, largest scale first, then printed numbers and notes."""
    place, waiting = Place(paper, section.name), paper.of(section.name)
    texts = [(tag, text) for tag, text in section.texts if text and tag != "tr"]
    expected = len(waiting)
    for tag, text in texts:
        if tag == "h3":
            place.result = waiting.pop(0)
        if place.result is not None and (tag, text) == ("summary", "Printed numbers"):
            assert not waiting
        check(place, tag, text)
    assert not waiting
    assert len(section.of("h3")) == expected
    tables = list(zip(section.tables, section.marks, strict=True))
    for one in paper.of(section.name):
        place = Place(paper, section.name, one)
        if one.tests or one.untested:
            check_verdicts(place, *tables.pop(0))
        if one.measurements:
            check_measurements(place, *tables.pop(0))
        for raw in one.tables:
            if paper.first_with_table(raw) == section.name:
                check_table(raw, *tables.pop(0))
    if printed_of(section.name)["rows"]:
        check_printed(place, *tables.pop(0))
    assert not tables
    captions = [text for one in paper.of(section.name) for text in one.figures]
    first = [text for text in captions if paper.first_with_figure(text) == section.name]
    assert section.of("figcaption") == first
    assert sum(text.startswith("Figure as in ") for text in section.of("p")) == len(captions) - len(first)
    elsewhere = [
        raw for one in paper.of(section.name) for raw in one.tables if paper.first_with_table(raw) != section.name
    ]
    assert sum(text.startswith("Table as in ") for text in section.of("p")) == len(elsewhere)
    deviations = [found for one in paper.of(section.name) if (found := deviations_of(one)) is not None]
    lines = sum(len(each) or 1 for each in deviations if not each or first_with_deviations(paper, each) == section.name)
    assert len(section.of("li")) == len(notes_of(section.name)) + lines


@pytest.mark.slow
@QUICK
@given(papers())
def test_every_text_of_a_page_follows_from_its_results(paper: Paper) -> None:
    CHECKED_HERE.add("pages")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store")
        for raw in paper.results:
            raw.result().save(store.result_file(raw.item, raw.scale))
        page = Page(paper_page(paper.name, store, Path(folder) / "page.html").read_text(encoding="utf-8"))
    run_items = [row["id"] for row in rows_of(paper.name) if paper.of(row["id"])]
    head, *sections = page.sections
    if run_items:
        claims, *sections = sections
        assert claims.name == "claims"
        (head_of_claims,) = claims.of("h2")
        check(Place(paper, ""), "h2", head_of_claims)
        (note,) = (text for text in claims.of("p") if text)
        check(Place(paper, ""), "p", note)
        check_claims(paper, claims.tables[0], claims.marks[0])
        assert set(claims.links) == {f"#{item}" for item in run_items if item in " ".join(claims.of("tr"))}
    assert [section.name for section in sections] == [row["id"] for row in rows_of(paper.name)]
    assert head.links == ["#content", *(f"#{item}" for item in run_items)]
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for section in page.sections for link in section.links} <= set(page.ids)
    sections[-1].texts, foot = sections[-1].texts[:-1], sections[-1].texts[-1:]
    for tag, text in [*head.texts, *foot]:
        if text:
            check(Place(paper, ""), tag, text)
    for section in sections:
        check_section(paper, section)
    statuses = [section.of("p") for section in sections]
    (lead,) = (text for text in head.of("p") if " items: " in text)
    found = re.findall(r"\d+", lead)[:4]
    assert int(found[2]) == sum(any(text.startswith("Covered by") for text in texts) for texts in statuses)
    assert int(found[3]) == sum(
        any(text.startswith(("Not in this version", "Requires ")) for text in texts) for texts in statuses
    )


def printed_by(action: Callable[..., None], *arguments: object) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        action(*arguments)
    return stream.getvalue().replace("\u00a0", " ").splitlines()


def claim_lines(paper: Paper) -> list[str]:
    """Lines of a call on each claim with tests of parts of it."""
    claims = [one.raw.claim for _, some, _ in paper.newest() for one in some if one.raw.covers]
    return [
        f"{claim} as a whole: {all_texts(paper, claim)}: {words_of(claim)['claim']}" for claim in dict.fromkeys(claims)
    ]


def check_lines_of_verdicts(lines: list[str], tests: list[Shown], untested: dict[str, str]) -> None:
    for one in tests:
        claim = one.raw.claim
        if one.raw.covers:
            assert lines.pop(0) == f"{claim}, {one.covered()}"
        else:
            assert lines.pop(0) == f"{claim} {one.covered()}: {words_of(claim)['claim']}"
        start = f"  {one.raw.estimand}: "
        assert lines[0].startswith(start)
        found = re.fullmatch(r"([+-][\d.]+(?: points| %²)?)(?: (.+))?", lines.pop(0)[len(start) :])
        assert found is not None
        check_estimate(one, found[1], found[2] or "")
        if one.raw.note:
            assert lines.pop(0) == f"  {one.raw.note}"
    for claim, reason in untested.items():
        assert lines.pop(0) == f"{claim} not tested: {words_of(claim)['claim']}"
        assert lines.pop(0) == f"  {reason}"


@pytest.mark.slow
@settings(QUICK, max_examples=60)
@given(papers())
def test_every_line_of_a_run_follows_from_its_results(paper: Paper) -> None:
    """Verdicts of one item, corrected over its own tests."""
    scale = paper.results[0].scale if paper.results else "smoke"
    order = [row["id"] for name in ("kdd21", "iclr21", "benz20", "cfa23") for row in rows_of(name)]
    call = sorted((one for one in paper.results if one.scale == scale), key=lambda one: order.index(one.item))
    for raw in call:
        result, single = raw.result(), Paper(paper.name, (raw,))
        lines = printed_by(show_result, result)
        assert lines.pop(0) == f"{raw.item} at scale {raw.scale}: {raw.setting}"
        for table in result.tables:
            assert lines.pop(0) == ""
            assert lines.pop(0) == table.caption
            shown: list[list[Any]] = [list(table.heads), *([one.name, *one.cells] for one in table.rows)]
            for row in shown:
                texts = [one if isinstance(one, str) else f"{one[0]} [{one[1]}]" if one[1] else one[0] for one in row]
                assert re.split(r"  +", lines.pop(0).strip()) == texts
            if table.note:
                assert lines.pop(0) == table.note.replace("\u00a0", " ")
        assert lines.pop(0) == ""
        check_lines_of_verdicts(lines, single.shown(raw), raw.untested)
        for one in raw.measurements:
            kind = "open question" if is_question(one.question) else "measurement"
            assert lines.pop(0) == f"{one.question} {kind}: {words_of(one.question)['claim']}"
            start = f"  {one.quantity}: "
            assert lines[0].startswith(start)
            found = re.fullmatch(
                r"([^()]+?)(?: \((.+); 95 % interval for new images of a kind\))?", lines.pop(0)[len(start) :]
            )
            assert found is not None
            check_measured(one, found[1], found[2] or "")
        for line in claim_lines(single):
            assert lines.pop(0) == line
        notes = [f"note {one['id']} ({one['kind']}): {one['text']}" for one in notes_of(raw.item)]
        assert "\n".join(lines) == "\n".join([*notes, ""]).replace("\u00a0", " ")


@pytest.mark.parametrize("run", [False, True], ids=["no store", "a store"])
@pytest.mark.parametrize("name", ["kdd21", "iclr21", "benz20", "cfa23"])
def test_the_list_contains_every_item_with_its_status(name: str, run: bool, tmp_path: Path) -> None:
    rows, finished = rows_of(name), set[str]()
    if run:
        store = Store(tmp_path / "store")
        finished = {next(row["id"] for row in rows if row["id"] in runnable())}
        for item in finished:
            store.result_file(item, "reduced").parent.mkdir(parents=True)
            store.result_file(item, "reduced").write_text("{}", encoding="utf-8")
    head, *lines = printed_by(list_items, [name], tmp_path / "store" if run else STORE, False)
    heads = ["id", "kind", "what", "status", "run at" if run else "scales", "deviations", "command, or what is missing"]
    assert re.split("  +", head) == heads
    starts = [head.index(one) for one in heads]
    for line, row in zip(lines, rows, strict=True):
        ends = [*starts[1:], None]
        cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        item, kind, what, status, scales, deviations, command = cells
        title = row["title"]
        assert (item, kind) == (row["id"], row["kind"])
        assert what == title or (len(title) > 44 and len(what) <= 44 and title.startswith(what.rstrip("…")))
        assert (status == "runnable") == (item in runnable())
        assert (status == "missing") == command.startswith(("not in this version", "requires "))
        assert status != "runnable" or command == f"classwise papers run {item}"
        known = list(experiment(item).scales) if item in runnable() else []
        assert scales == ", ".join((["reduced"] if item in finished else []) if run else known)
        assert bool(deviations) == (item in runnable())
        counts = "|".join(rf"{scale} \d+" for scale in ("full", "reduced"))
        assert re.fullmatch(rf"|no settings|(({counts})(, |$))*", deviations), deviations


def test_every_statement_is_generated() -> None:
    """After the test of the pages, which reaches every statement of the list."""
    if "pages" not in CHECKED_HERE:
        pytest.skip("another process has checked the pages")
    assert {checked.__name__ for *_, checked in STATEMENTS} - SEEN <= {"missing"}  # no item is missing today
