"""Every text and number of a paper's page and of the terminal, recomputed from the raw numbers of random results.

A page is read back from its HTML, section by section. Each text must be one of the statements below, each with the
function that recomputes it; a text that no statement fits fails the test.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from classwise.cli.papers import _list, _report, _report_together
from classwise.papers.catalogue import EXPERIMENTS
from classwise.papers.page import paper_page
from classwise.papers.store import Store

from ..report.test_statements import Texts
from .statements import (
    ALPHA,
    SAID,
    VERSION,
    Paper,
    RawResult,
    RawTable,
    Shown,
    facts,
    interval_of,
    listed,
    notes_of,
    papers,
    rows_of,
    shows,
    variance_bounds,
    whole,
    wilson_of,
    words_of,
    z_of,
)

QUICK = settings(max_examples=40, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
NONE = "–"


@dataclass
class Section:
    """A part of a page: its texts by element, its tables with the class of each row, its links and its code."""

    name: str
    texts: list[tuple[str, str]] = field(default_factory=list)
    tables: list[list[list[str]]] = field(default_factory=list)
    marks: list[list[str]] = field(default_factory=list)
    links: list[str] = field(default_factory=list)

    def of(self, *tags: str) -> list[str]:
        return [text for tag, text in self.texts if tag in tags and text]


class Page(Texts):
    """A page by sections; the head is the section without a name."""

    def __init__(self, page: str) -> None:
        self.sections = [Section("")]
        self.ids: list[str] = []
        super().__init__(page)

    @property
    def here(self) -> Section:
        return self.sections[-1]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        super().handle_starttag(tag, attrs)
        if "id" in known:
            self.ids.append(known["id"])
        if tag == "section":
            self.sections.append(Section(known["id"]))
        elif tag == "table":
            self.here.tables.append(self.rows[-1])
            self.here.marks.append([])
        elif tag == "tr":
            self.here.marks[-1].append(known.get("class", ""))
        elif tag == "a":
            self.here.links.append(known["href"])

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][1].append(data)
        if self.open and self.open[-1][0] == "tr" and self.rows[-1][-1]:
            self.rows[-1][-1][-1] += re.sub(r"\s+", " ", data)

    def handle_endtag(self, tag: str) -> None:
        before = len(self.found)
        super().handle_endtag(tag)
        for element, text in self.found[before:]:
            self.here.texts.append((element, text.replace("\u00a0", " ")))


@dataclass
class Place:
    """Where a text is: the paper, the item of the section, and its result if it is below a scale."""

    paper: Paper
    item: str
    result: RawResult | None = None

    @property
    def about(self) -> dict[str, str]:
        (row,) = (row for row in rows_of(self.paper.name) if row["id"] == self.item)
        return dict(row)

    @property
    def below(self) -> RawResult:
        assert self.result is not None
        return self.result


Check = Callable[[Place, re.Match[str]], None]
STATEMENTS: list[tuple[str, re.Pattern[str], Check]] = []
SEEN: set[str] = set()


def statement(tag: str, pattern: str) -> Callable[[Check], Check]:
    """Register the check of every text of an element that the pattern fits wholly."""

    def add(check: Check) -> Check:
        STATEMENTS.append((tag, re.compile(pattern, re.DOTALL), check))
        return check

    return add


def check(place: Place, tag: str, text: str) -> str:
    for element, pattern, checked in STATEMENTS:
        found = pattern.fullmatch(text) if element == tag else None
        if found is not None:
            checked(place, found)
            SEEN.add(checked.__name__)
            return checked.__name__
    raise AssertionError(f"no statement fits <{tag}> {text!r} of {place.item or 'the head'}")


def plain(text: object) -> str:
    """Our texts as a page shows them: white space is one blank, marks of direction are visible."""
    return re.sub(r"\s+", " ", str(text).replace("\u202e", "⟨U+202E⟩")).strip()


@statement("h1", "(.+)")
@statement("title", r"\w+: (.+)")
def title(place: Place, found: re.Match[str]) -> None:
    assert found[1] == plain(facts(place.paper.name)["bibliography"]["title"])


@statement("p", r"classwise papers page (kdd21|iclr21|benz20|cfa23)(.+)")
def over(place: Place, found: re.Match[str]) -> None:
    assert found[1] == place.paper.name
    assert found[2] == plain(facts(place.paper.name)["bibliography"]["venue"])


@statement(
    "p",
    r"(\d+) items: (\d+) that run, (\d+) covered by parts of the library, (\d+) that wait for something\. "
    r"(\d+) (has|have) been run\.(?: Together they took (at least )?([\d,.]+) s, each training and audit counted "
    r"once\.)?",
)
def counts(place: Place, found: re.Match[str]) -> None:
    rows, mine = rows_of(place.paper.name), place.paper.mine
    items = {one.item for one in mine}
    assert int(found[1]) == len(rows)
    assert int(found[2]) == sum(row["id"] in EXPERIMENTS for row in rows)
    assert int(found[1]) == sum(int(found[group]) for group in (2, 3, 4))
    assert int(found[5]) == len(items)
    assert found[6] == ("has" if len(items) == 1 else "have")
    assert (found[8] is None) == (not mine)
    if mine:
        work = {key: seconds for one in mine for key, seconds in (one.work or {}).items()}
        total = math.fsum([*(one.own for one in mine), *(one for one in work.values() if one is not None)])
        shows(found[8].replace(",", ""), total, 1)
        assert bool(found[3 + 4]) == (None in work.values() or any(one.work is None for one in mine))


@statement("h2", "What is claimed, and what these runs say")
def claimed(place: Place, found: re.Match[str]) -> None:
    assert place.paper.mine
    assert found


@statement("h2", r"(\w+/\S+): (.+)")
def heading(place: Place, found: re.Match[str]) -> None:
    assert (found[1], found[2]) == (place.item, plain(place.about["title"]))


@statement("p", r"(table|figure|experiment|method|attack|data set|network|quantity|theorem|plan), section (.+)")
def about(place: Place, found: re.Match[str]) -> None:
    row = place.about
    assert found[1] == row["kind"]
    text = f"{row['section']}; {row['parameters']}" if row["parameters"] else row["section"]
    assert found[2] == plain(f"{text}. Expected: {row['finding']}." if row["finding"] else f"{text}.")


@statement("p", r"Not run yet: (.+)")
def not_run(place: Place, found: re.Match[str]) -> None:
    assert place.item in EXPERIMENTS
    assert not place.paper.of(place.item)
    assert found[1] == f"classwise papers run {place.item}"


@statement("p", r"Covered by (.+?)(?:: (classwise .+))?\.")
def covered(place: Place, found: re.Match[str]) -> None:
    row = place.about
    assert place.item not in EXPERIMENTS
    assert found[1] == ", ".join(row.get("covered_by") or row["same_as"])
    looks = {"attack": "attacks", "suite": "attacks", "data": "data", "recipe": "recipes show"}
    if row.get("same_as"):
        assert found[2] == f"classwise papers run {' '.join(row['same_as'])}"
        assert all(other in EXPERIMENTS for other in row["same_as"])
        return
    commands = [f"classwise papers show {place.item}"]
    for reference in row["covered_by"]:
        kind, _, name = reference.partition(" ")
        if kind == "model" or kind in looks:
            commands.append("classwise models" if kind == "model" else f"classwise {looks[kind]} {name}")
    assert found[2] == commands[1 if len(commands) > 1 else 0]


@statement("p", r"(?:Waits for|Not in this version: )(.+)\.")
def missing(place: Place, found: re.Match[str]) -> None:
    assert place.item not in EXPERIMENTS
    assert found[1]


@statement("p", r"(.+ its setting)\. (\d+) trainings?, (at least )?([\d,.]+) s (.+), classwise ([\d.]+)\.")
def run(place: Place, found: re.Match[str]) -> None:
    one = place.below
    assert found[1] == one.setting
    assert int(found[2]) == one.trainings
    assert f"{found[2]} training{'' if one.trainings == 1 else 's'}," in found[0]
    shows(found[4].replace(",", ""), one.seconds, 1)
    stored = "without the trainings and audits that were in the store already"
    assert found[5] == (stored if one.work is None else "with all trainings and audits")
    assert bool(found[3]) == (one.work is not None and None in one.work.values())
    assert found[6] == VERSION


@statement(
    "p",
    "p after Holm's correction over all tests of the paper at this scale; an interval has the level that the "
    r"correction left for it\.",
)
def note_of_verdicts(place: Place, found: re.Match[str]) -> None:
    assert place.below.tests or place.below.beyond, found


@statement("p", "Small: 95 % intervals for new images of the class, the model fixed\\.")
def note_of_classes(place: Place, found: re.Match[str]) -> None:
    assert any(table.form == "class" for table in place.below.tables), found


@statement(
    "p", "Small: 95 % intervals for new images of the same classes, the models fixed; below a class, its accuracy\\..*"
)
def note_of_summary(place: Place, found: re.Match[str]) -> None:
    assert found[0].endswith("Printed classes are CIFAR-10's by number, from 0: 1 is automobile, 3 is cat.")
    assert any(table.form == "summary" for table in place.below.tables)


@statement(
    "p", r"Small: recomputed from the classes\.(?: Set off: (\d+) of (\d+) rows that do not agree; see the notes\.)?"
)
def note_of_printed(place: Place, found: re.Match[str]) -> None:
    rows = printed_of(place.item)["rows"]
    wrong = [row for row in rows if not agrees(row)]
    assert (found[1], found[2]) == ((str(len(wrong)), str(len(rows))) if wrong else (None, None))
    assert not wrong or notes_of(place.item), "no note to see"


@statement("p", r"(\w+/\S+) as printed(?:: (.+))?")
def as_printed(place: Place, found: re.Match[str]) -> None:
    assert found[1] == place.item
    assert (found[2] or "") == plain(printed_of(place.item).get("caption", "")).rstrip(": ")


@statement(
    "p",
    r"Made by classwise \S+\. Intervals speak of new images of the same classes, with the trained models fixed\. "
    r"Accuracy is in percent, class-wise variance in percent squared\. Point at a mark to read its numbers\.",
)
def footer(place: Place, found: re.Match[str]) -> None:
    assert place, found


@statement("h3", r"Scale (\w+)")
def scale(place: Place, found: re.Match[str]) -> None:
    assert found[1] == place.below.scale


@statement("figcaption", "(.+)")
def caption_of_figure(place: Place, found: re.Match[str]) -> None:
    assert found[1] in place.below.figures


@statement("summary", "The printed numbers")
def printed_numbers(place: Place, found: re.Match[str]) -> None:
    assert printed_of(place.item)["rows"], found


@statement("summary", r"What does not add up: (\d+) (notes?)")
def number_of_notes(place: Place, found: re.Match[str]) -> None:
    assert int(found[1]) == len(notes_of(place.item))
    assert found[2] == ("note" if found[1] == "1" else "notes")


@statement("summary", "(.+)")
def caption_of_table(place: Place, found: re.Match[str]) -> None:
    assert found[1] in [table.caption for table in place.below.tables]


@statement("li", r"(\S+) \((.+?)\): (.+)")
def note(place: Place, found: re.Match[str]) -> None:
    assert (found[1], found[2], found[3]) in [
        (str(one["id"]), one["kind"], plain(one["text"])) for one in notes_of(place.item)
    ]


def printed_of(item: str) -> dict[str, Any]:
    """The facts of a printed table or figure; of a panel, those of the whole."""
    known = facts(item.partition("/")[0])
    found = {one["id"]: one for key in ("tables", "figures") for one in known[key]}
    whole_item = item if item in found else re.sub(r"[a-z]+(-[a-z])?$", "", item)
    return {"rows": [], **found.get(whole_item, {})}


def agrees(row: dict[str, Any]) -> bool:
    a = np.array(row["per_class"], dtype=float)
    asked = [(a.mean(), row.get("tot", row.get("adv")), 0.1), (((a - a.mean()) ** 2).mean(), row.get("cv"), 0.15)]
    asked.append((a.max() - a.min(), row.get("mcd"), 0.1))
    return all(printed is None or abs(ours - printed) <= within + 1e-6 for ours, printed, within in asked)


def number(value: object) -> str:
    """A printed number as the facts have it."""
    if isinstance(value, list):
        return " ".join(number(one) for one in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if float(value).is_integer() else str(float(value))
    return NONE if value is None else plain(value)


def check_estimate(one: Shown, value: str, span: str) -> None:
    """The estimate with its unit, and its interval at one of the levels that Holm's procedure may have left."""
    raw = one.raw
    text, _, unit = value.partition(" ")
    assert unit == raw.unit
    shows(text, one.value, 2, sign=True)
    if raw.exact:
        assert span == ""
        return
    if one.error != one.error:
        assert span == "no resample differs"
        return
    found = re.fullmatch(r"(\S+) to (\S+) \(([\d.]+) %\)", span)
    assert found is not None, span
    assert found[3] != "100"
    failures = []
    for level in one.levels:
        reach = z_of(level / one.shares) * one.error
        ends = [one.value - reach, one.value + reach]
        if raw.limits is not None:
            ends = [max(ends[0], raw.limits[0]), min(ends[1], raw.limits[1])]
        try:
            shows(found[1], ends[0], 2, sign=True)
            shows(found[2], ends[1], 2, sign=True)
            step = 10.0 ** -len(found[3].partition(".")[2])
            assert abs(float(found[3]) - (100 - 100 * level / one.shares)) <= 0.5 * step + 1e-9
        except AssertionError as failure:
            failures.append(failure)
    assert len(failures) < len(one.levels), failures


def check_p(text: str, one: Shown) -> None:
    if one.raw.exact:
        assert text == "exact"
    elif text == "< 0.001":
        assert one.adjusted < 0.001
    else:
        assert one.adjusted >= 0.001
        shows(text, one.adjusted, 3)


def cell(text: str, small: str) -> str:
    return f"{plain(text)}|{plain(small)}" if small else plain(text)


def check_verdicts(place: Place, table: list[list[str]], marks: list[str]) -> None:
    assert table[0] == ["claim", "what is claimed", "verdict", "estimate", "adjusted p"]
    tests, beyond = place.paper.shown(place.below), place.below.beyond
    assert len(table) == 1 + len(tests) + len(beyond)
    for row, mark, one in zip(table[1:], marks[1:], tests, strict=False):
        claim = one.raw.claim
        assert row[:2] == [claim.partition("/")[2], cell(words_of(claim)["claim"], one.raw.estimand)]
        assert row[2] == cell(one.covered, one.raw.note)
        value, _, span = row[3].partition("|")
        check_estimate(one, value, span)
        check_p(row[4], one)
        assert mark == {"holds": "good", "does not hold": "weak", "inconclusive": ""}[one.answer]
    for row, mark, (claim, reason) in zip(
        table[1 + len(tests) :], marks[1 + len(tests) :], beyond.items(), strict=True
    ):
        words = [claim.partition("/")[2], words_of(claim)["claim"], f"{SAID['inconclusive']}|{reason}", NONE, NONE]
        assert [*map(plain, words)] == row
        assert mark == ""


def check_claims(paper: Paper, table: list[list[str]], marks: list[str]) -> None:
    claims = facts(paper.name)["claims"]
    assert len(table) == 1 + len(claims)
    for row, mark, claim in zip(table[1:], marks[1:], claims, strict=True):
        text, small, expected = whole(paper, claim["id"])
        words = cell(claim["claim"], f"The paper: {claim['paper']}")
        assert row == [claim["id"].partition("/")[2], words, cell(text, small)]
        assert mark == expected


def check_table(raw: RawTable, table: list[list[str]], marks: list[str]) -> None:
    assert not any(marks)
    if raw.form == "estimates":
        assert len(table) == 1 + len(raw.estimates)
        for row, (value, low, high) in zip(table[1:], raw.estimates, strict=True):
            text, _, small = row[1].partition("|")
            if value != value:
                assert (text, small) == (NONE, "")
                continue
            shows(text, 100 * value, 1)
            if low != low:
                assert small == ""
                continue
            ends = small.split(" to ")
            shows(ends[0], 100 * low, 1)
            shows(ends[1], 100 * high, 1)
        return
    assert len(table) == 1 + len(raw.rows)
    for row, (name, right, images), printed in zip(table[1:], raw.rows, raw.printed, strict=True):
        assert row[0] == f"{name}, PGD"
        check_counts(raw, row[1:], right, images, printed) if raw.form == "summary" else check_classes(
            row[1:], right, images
        )


def check_span(text: str, low: float, high: float) -> None:
    ends = text.split("–")
    shows(ends[0], 100 * low, 1)
    shows(ends[1], 100 * high, 1)


def check_classes(cells: list[str], right: tuple[int, ...], images: tuple[int, ...]) -> None:
    assert len(cells) == len(images)
    for text, good, count in zip(cells, right, images, strict=True):
        value, _, small = text.partition("|")
        if count == 0:
            assert (value, small) == (NONE, NONE)
        else:
            shows(value, 100 * good / count, 1)
            check_span(small, *interval_of(good, count))


def check_counts(
    raw: RawTable,
    cells: list[str],
    right: tuple[int, ...],
    images: tuple[int, ...],
    printed: tuple[float, ...] | None,
) -> None:
    """Total, CV and MCD, each beside the printed one, and all classes that are lowest and highest."""
    shares = {label: good / count for label, (good, count) in enumerate(zip(right, images, strict=True)) if count}
    values = np.array(list(shares.values()))
    level = 1 - (1 - ALPHA) ** (1 / len(shares))
    box = [interval_of(right[label], images[label], level) for label in shares]
    low, high = (np.array(ends) for ends in zip(*box, strict=True))
    total, small = cells[0].split("|")
    shows(total, 100 * sum(right) / sum(images), 1)
    check_span(small, *wilson_of(sum(right), sum(images)))
    variance, small = cells[2].split("|")
    squared = 1e4 * float(((values - values.mean()) ** 2).mean())
    shows(variance, squared, 0 if squared >= 100 else 1)
    ends = [1e4 * end for end in variance_bounds(low, high)]
    for text, end in zip(small.split("–"), ends, strict=True):
        digits = 0 if ends[1] >= 100 else 1
        assert abs(float(text) - end) <= 0.5 * 10.0**-digits + 2e-3 * max(end, 1)
        assert len(text.partition(".")[2]) == digits
    gap, small = cells[4].split("|")
    shows(gap, 100 * (values.max() - values.min()), 1)
    check_span(small, max(low.max() - high.min(), 0.0), high.max() - low.min())
    for place, pick in ((6, min), (8, max)):
        found = pick(shares.values())
        name, accuracy = cells[place].split("|")
        assert name == plain(listed([raw.names[label] for label, share in shares.items() if share == found]))
        shows(accuracy, 100 * found, 1)
        if printed is None:
            assert cells[place + 1] == NONE
            continue
        labels = [str(label) for label, value in enumerate(printed) if value == pick(printed)]
        assert cells[place + 1] == f"class{'es' * (len(labels) > 1)} {listed(labels)}|{number(pick(printed))}"
    theirs = [NONE] * 3 if printed is None else [number(printed[0]), NONE, "30.25"]
    assert [cells[1], cells[3], cells[5]] == theirs


def check_printed(place: Place, table: list[list[str]], marks: list[str]) -> None:
    """The printed rows, number by number, with total, CV and MCD from the printed classes below."""
    rows = printed_of(place.item)["rows"]
    assert isinstance(rows, list)
    assert len(table) == 1 + len(rows)
    for row, mark, known in zip(table[1:], marks[1:], rows, strict=True):
        name = [str(known[key]) for key in ("defence", "method", "attack", "test_set", "line") if key in known]
        assert row[0] == plain(", ".join([*name, *([f"1/T = {known['inv_T']}"] if "inv_T" in known else [])]))
        if not all("per_class" in one for one in rows):
            heads = [head.replace(" ", "_") for head in table[0][1:]]
            for head, text in zip(heads, row[1:], strict=True):
                assert text == number(known.get(head)), (place.item, head)
            assert set(known) <= {*heads, "defence", "method", "attack", "test_set", "line", "inv_T"}
            continue
        a = np.array(known["per_class"], dtype=float)
        assert (mark == "weak") == (not agrees(known))
        for text, printed, ours, digits in (
            (row[1], known.get("tot", known.get("adv")), a.mean(), 2),
            (row[-2], known.get("cv"), ((a - a.mean()) ** 2).mean(), 2),
            (row[-1], known.get("mcd"), a.max() - a.min(), 1),
        ):
            value, _, small = text.partition("|")
            assert value == number(printed)
            shows(small, float(ours), digits)
        for text, value in zip(row[2:-2], a, strict=True):
            shows(text, value, 1)


def check_section(paper: Paper, section: Section) -> None:
    """The texts and tables of an item: of its results, the largest scale first, then the printed ones and notes."""
    place, waiting = Place(paper, section.name), paper.of(section.name)
    texts = [(tag, text) for tag, text in section.texts if text and tag != "tr"]
    expected = len(waiting)
    for tag, text in texts:
        if tag == "h3":
            place.result = waiting.pop(0)
        if place.result is not None and (tag, text) == ("summary", "The printed numbers"):
            assert not waiting
        check(place, tag, text)
    assert not waiting
    assert len(section.of("h3")) == expected
    tables = list(zip(section.tables, section.marks, strict=True))
    for one in paper.of(section.name):
        place = Place(paper, section.name, one)
        if one.tests or one.beyond:
            check_verdicts(place, *tables.pop(0))
        for raw in one.tables:
            check_table(raw, *tables.pop(0))
    if printed_of(section.name)["rows"]:
        check_printed(place, *tables.pop(0))
    assert not tables
    captions = [text for one in paper.of(section.name) for text in one.figures]
    assert section.of("figcaption") == captions
    assert len(section.of("li")) == len(notes_of(section.name))


@QUICK
@given(papers())
def test_every_text_of_a_paper_s_page_follows_from_its_results(paper: Paper) -> None:
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
        check_claims(paper, claims.tables[0], claims.marks[0])
        assert set(claims.links) == {f"#{item}" for item in run_items if item in " ".join(claims.of("tr"))}
    assert [section.name for section in sections] == [row["id"] for row in rows_of(paper.name)]
    assert head.links == [f"#{item}" for item in run_items]
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
        any(text.startswith(("Not in this version", "Waits for")) for text in texts) for texts in statuses
    )


def printed_by(action: Callable[..., None], *given: object) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        action(*given)
    return stream.getvalue().replace("\u00a0", " ").splitlines()


def claim_lines(paper: Paper) -> list[str]:
    """What a call says of each claim that a test named a part of."""
    claims = [one.raw.claim for _, some, _ in paper.newest() for one in some if one.raw.covers]
    return [
        f"{claim} as a whole: {whole(paper, claim)[0]}: {words_of(claim)['claim']}" for claim in dict.fromkeys(claims)
    ]


def check_lines_of_verdicts(lines: list[str], tests: list[Shown], beyond: dict[str, str]) -> None:
    for one in tests:
        claim = one.raw.claim
        if one.raw.covers:
            assert lines.pop(0) == f"{claim}, {one.covered}"
        else:
            assert lines.pop(0) == f"{claim} {one.covered}: {words_of(claim)['claim']}"
        start = f"  {one.raw.estimand}: "
        assert lines[0].startswith(start)
        found = re.fullmatch(r"([+-][\d.]+(?: points| %²)?)(?: (.+))?", lines.pop(0)[len(start) :])
        assert found is not None
        check_estimate(one, found[1], found[2] or "")
        if one.raw.note:
            assert lines.pop(0) == f"  {one.raw.note}"
    for claim, reason in beyond.items():
        assert lines.pop(0) == f"{claim} {SAID['inconclusive']}: {words_of(claim)['claim']}"
        assert lines.pop(0) == f"  {reason}"


@settings(QUICK, max_examples=60)
@given(papers())
def test_every_line_of_a_run_follows_from_its_results(paper: Paper) -> None:
    """The verdicts of one item, corrected over its own tests; then what the tests of all items in a call change."""
    scale = paper.results[0].scale if paper.results else "smoke"
    order = [row["id"] for name in ("kdd21", "iclr21", "benz20", "cfa23") for row in rows_of(name)]
    call = sorted((one for one in paper.results if one.scale == scale), key=lambda one: order.index(one.item))
    for raw in call:
        result, alone = raw.result(), Paper(paper.name, (raw,))
        lines = printed_by(_report, result)
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
        check_lines_of_verdicts(lines, alone.shown(raw), raw.beyond)
        for line in claim_lines(alone):
            assert lines.pop(0) == line
        notes = [f"note {one['id']} ({one['kind']}): {one['text']}" for one in notes_of(raw.item)]
        assert "\n".join(lines) == "\n".join([*notes, ""]).replace("\u00a0", " ")
    if len(call) > 1:
        family = Paper(paper.name, tuple(call))
        lines = printed_by(_report_together, [raw.result() for raw in call])
        assert lines.pop(0) == "All claims of a paper in this call corrected together (Holm):"
        pairs = [pair for raw in call for pair in zip(Paper("", (raw,)).shown(raw), family.shown(raw), strict=True)]
        changed = [
            f"{mine.raw.claim} {now.covered} (by itself: {SAID[mine.answer]}): {mine.raw.estimand}"
            for mine, now in pairs
            if mine.answer != now.answer
        ]
        verdicts = len(pairs) + sum(len(raw.beyond) for raw in call)
        assert lines == [*(changed or [f"none of the {verdicts} verdicts changes"]), *claim_lines(family)]


@pytest.mark.parametrize("name", ["kdd21", "iclr21", "benz20", "cfa23"])
def test_the_list_has_every_item_with_its_status(name: str) -> None:
    head, *lines = printed_by(_list, [name], False)
    assert re.split("  +", head) == ["id", "kind", "what", "status", "command, or what is missing"]
    for line, row in zip(lines, rows_of(name), strict=True):
        item, kind, what, status, command = re.split("  +", line)
        title = row["title"]
        assert (item, kind) == (row["id"], row["kind"])
        assert what == title or (len(title) > 60 and len(what) <= 60 and title.startswith(what.rstrip("…")))
        assert (status == "runnable") == (item in EXPERIMENTS)
        assert (status == "missing") == command.startswith(("not in this version", "waits for"))
        assert status != "runnable" or command == f"classwise papers run {item}"


def test_every_statement_was_seen() -> None:
    """After the test above: no statement of the list is out of reach of the generator."""
    if SEEN:
        assert {checked.__name__ for *_, checked in STATEMENTS} - SEEN <= {"missing"}  # no item is missing now
