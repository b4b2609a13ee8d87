"""Parse the HTML page of a paper, and check each of its texts.

Each text must match one of the statements below, each with a function that recomputes it. A text that matches no
statement fails the test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np

from classwise.papers.catalogue import runnable
from classwise.papers.settings_tables import comparisons, deviation_lines

from .statements import (
    VERSION,
    Paper,
    RawResult,
    facts,
    notes_of,
    rows_of,
    shows,
)

NONE = "–"


class Texts(HTMLParser):
    """The texts of a page by element: headings, paragraphs, captions, hover texts, table rows."""

    WANTED = frozenset({"h1", "h2", "h3", "p", "figcaption", "title", "li", "tr", "summary", "dt", "dd", "text"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.rows: list[list[list[str]]] = []
        self.open: list[tuple[str, list[str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.rows.append([])
        elif tag == "tr":
            self.rows[-1].append([])
        elif tag in {"th", "td"}:
            self.rows[-1][-1].append("")
        elif tag == "small":
            self.rows[-1][-1][-1] += "|"
        if tag in self.WANTED:
            self.open.append((tag, []))

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1][0] == tag:
            self.found.append((tag, re.sub(r"\s+", " ", "".join(self.open.pop()[1])).strip()))

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][1].append(data)
        if self.open and self.open[-1][0] == "tr" and self.rows[-1][-1]:
            self.rows[-1][-1][-1] += data.replace("\u00a0", " ").strip()

    def of(self, *tags: str) -> Iterator[str]:
        return (text for tag, text in self.found if tag in tags and text)


@dataclass
class Section:
    """A section of a page: texts by element, tables with the CSS class of each row, and links."""

    name: str
    texts: list[tuple[str, str]] = field(default_factory=list)
    tables: list[list[list[str]]] = field(default_factory=list)
    marks: list[list[str]] = field(default_factory=list)
    links: list[str] = field(default_factory=list)

    def of(self, *tags: str) -> list[str]:
        return [text for tag, text in self.texts if tag in tags and text]


class Page(Texts):
    """A page split into sections; the head is the section without a name."""

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
    """Location of a text: the paper, the item of the section, and the result if it is below a scale heading."""

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
    """Register the check of every text of an element that fully matches the pattern."""

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
    """A text as a page shows it: white space collapsed to one blank, marks of direction visible."""
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
    r"(\d+) items: (\d+) runnable, (\d+) covered by the library, (\d+) missing\. "
    r"(\d+) (has|have) been run\.(?: Total time: (at least )?([\d,.]+) s, each training and audit counted once\.)?",
)
def counts(place: Place, found: re.Match[str]) -> None:
    rows, own_results = rows_of(place.paper.name), place.paper.own_results
    items = {one.item for one in own_results}
    assert int(found[1]) == len(rows)
    assert int(found[2]) == sum(row["id"] in runnable() for row in rows)
    assert int(found[1]) == sum(int(found[group]) for group in (2, 3, 4))
    assert int(found[5]) == len(items)
    assert found[6] == ("has" if len(items) == 1 else "have")
    assert (found[8] is None) == (not own_results)
    if own_results:
        work = {key: seconds for one in own_results for key, seconds in (one.work or {}).items()}
        total = math.fsum([*(one.own for one in own_results), *(one for one in work.values() if one is not None)])
        shows(found[8].replace(",", ""), total, 1)
        assert bool(found[3 + 4]) == (None in work.values() or any(one.work is None for one in own_results))


@statement("h2", "Claims of the paper and verdicts of these runs")
def claimed(place: Place, found: re.Match[str]) -> None:
    assert place.paper.own_results
    assert found


@statement("h2", r"(\w+/\S+): (.+)")
def heading(place: Place, found: re.Match[str]) -> None:
    assert (found[1], found[2]) == (place.item, plain(place.about["title"]))


@statement("p", r"(table|figure|experiment|method|attack|data set|network|quantity|theorem|plan), section (.+)")
def about(place: Place, found: re.Match[str]) -> None:
    row = place.about
    assert found[1] == row["kind"]
    text = "; ".join(row[key] for key in ("section", "parameters") if key in row)
    assert found[2] == plain(f"{text}. Expected: {row['finding']}." if "finding" in row else f"{text}.")


@statement("p", r"Not run yet: (.+)")
def not_run(place: Place, found: re.Match[str]) -> None:
    assert place.item in runnable()
    assert not place.paper.of(place.item)
    assert found[1] == f"classwise papers run {place.item}"


@statement("p", r"Covered by (.+?)(?:: (classwise .+))?\.")
def covered(place: Place, found: re.Match[str]) -> None:
    row = place.about
    assert place.item not in runnable()
    assert found[1] == ", ".join(row.get("covered_by") or row["same_as"])
    looks = {"attack": "attacks", "suite": "attacks", "data": "data", "recipe": "recipes show"}
    if row.get("same_as"):
        assert found[2] == f"classwise papers run {' '.join(row['same_as'])}"
        assert all(other in runnable() for other in row["same_as"])
        return
    commands = [f"classwise papers show {place.item}"]
    for reference in row["covered_by"]:
        kind, _, name = reference.partition(" ")
        if kind == "model" or kind in looks:
            commands.append("classwise models" if kind == "model" else f"classwise {looks[kind]} {name}")
    assert found[2] == commands[1 if len(commands) > 1 else 0]


@statement("p", r"(?:Requires |Not in this version: )(.+)\.")
def missing(place: Place, found: re.Match[str]) -> None:
    assert place.item not in runnable()
    assert found[1]


@statement(
    "p",
    r"(.+ its setting)\. (?:Each model: (.+?)\. )?(\d+) trainings?, (at least )?([\d,.]+) s (.+), classwise ([\d.]+)\.",
)
def run(place: Place, found: re.Match[str]) -> None:
    one = place.below
    assert found[1] == one.setting
    assert (found[2] or "") == one.evidence.settings
    assert int(found[3]) == one.trainings
    assert f"{found[3]} training{'' if one.trainings == 1 else 's'}," in found[0]
    shows(found[5].replace(",", ""), one.seconds, 1)
    stored = "excluding trainings and audits loaded from the store"
    assert found[6] == (stored if one.work is None else "including all trainings and audits")
    assert bool(found[4]) == (one.work is not None and None in one.work.values())
    assert found[7] == VERSION


@statement(
    "p",
    "The p-values of the items are corrected by Holm's procedure over all tests of the paper at the same scale; each "
    r"interval is at the corresponding level\.",
)
def note_of_claims(place: Place, found: re.Match[str]) -> None:
    assert place.paper.own_results, found
    assert not place.item


@statement(
    "p",
    r"Measurements have no verdict; their 95 % intervals are not corrected for multiple testing\.",
)
def note_of_measurements(place: Place, found: re.Match[str]) -> None:
    assert place.below.measurements, found


@statement("p", "Small print: 95 % confidence intervals for new images of the class with the model fixed\\.")
def note_of_classes(place: Place, found: re.Match[str]) -> None:
    assert any(table.form == "class" for table in place.below.tables), found


@statement(
    "p",
    "Small print: 95 % confidence intervals for new images of the same classes with the models fixed; under a class "
    "name, its accuracy\\..*",
)
def note_of_summary(place: Place, found: re.Match[str]) -> None:
    assert found[0].endswith("Printed classes are CIFAR-10 labels, from 0: 1 is automobile, 3 is cat.")
    assert any(table.form == "summary" for table in place.below.tables)


@statement(
    "p",
    r"Small print: recomputed from the class accuracies\.(?: Highlighted: (\d+) of (\d+) rows that disagree; see the "
    r"notes\.)?",
)
def note_of_printed(place: Place, found: re.Match[str]) -> None:
    rows = printed_of(place.item)["rows"]
    wrong = [row for row in rows if not agrees(row)]
    assert (found[1], found[2]) == ((str(len(wrong)), str(len(rows))) if wrong else (None, None))
    assert not wrong or notes_of(place.item), "no note on the disagreement"


@statement("p", r"(\w+/\S+) as printed(?:: (.+))?")
def as_printed(place: Place, found: re.Match[str]) -> None:
    assert found[1] == place.item
    assert (found[2] or "") == plain(printed_of(place.item).get("caption", "")).rstrip(": ")


@statement(
    "p",
    r"Generated by classwise \S+\. Intervals are for new images of the same classes, with the trained models fixed\. "
    r"Accuracies are in percent, class-wise variances in percent squared\. Hover over a mark for its values\.",
)
def footer(place: Place, found: re.Match[str]) -> None:
    assert place, found


@statement("h3", r"Scale (\w+)")
def scale(place: Place, found: re.Match[str]) -> None:
    assert found[1] == place.below.scale


@statement("figcaption", "(.+)")
def caption_of_figure(place: Place, found: re.Match[str]) -> None:
    assert found[1] in place.below.figures


@statement("summary", "Printed numbers")
def printed_numbers(place: Place, found: re.Match[str]) -> None:
    assert printed_of(place.item)["rows"], found


@statement("summary", r"Inconsistencies: (\d+) (notes?)")
def number_of_notes(place: Place, found: re.Match[str]) -> None:
    assert int(found[1]) == len(notes_of(place.item))
    assert found[2] == ("note" if found[1] == "1" else "notes")


def deviations_of(result: RawResult) -> list[str] | None:
    """Deviations from the paper's settings that a page shows, which tests/papers/test_settings.py checks by hand."""
    compared = comparisons(result.item, max(1, result.evidence.trainings)).get(result.scale)
    return None if compared is None or compared.reason else [plain(one) for one in deviation_lines(compared)]


@statement("summary", r"Deviations from the paper's settings: (\d+)")
def number_of_deviations(place: Place, found: re.Match[str]) -> None:
    lines = deviations_of(place.below)
    assert lines is not None
    assert int(found[1]) == len(lines)


@statement("li", "none")
def no_deviations(place: Place, found: re.Match[str]) -> None:
    assert deviations_of(place.below) == [], found


@statement("li", r"(.+: .+ \(paper\), .+ \(here\))")
def deviation(place: Place, found: re.Match[str]) -> None:
    assert found[1] in (deviations_of(place.below) or ())


@statement("summary", "(.+)")
def caption_of_table(place: Place, found: re.Match[str]) -> None:
    assert found[1] in [table.caption for table in place.below.tables]


def first_with_deviations(paper: Paper, lines: list[str]) -> str:
    """The first item of the page with these deviations."""
    items: list[str] = [row["id"] for row in rows_of(paper.name)]
    return next(item for item in items for one in paper.of(item) if deviations_of(one) == lines)


@statement("p", r"Deviations from the paper's settings: (\d+), those of (\w+/\S+)")
def same_deviations(place: Place, found: re.Match[str]) -> None:
    lines = deviations_of(place.below)
    assert lines
    assert int(found[1]) == len(lines)
    assert found[2] == first_with_deviations(place.paper, lines) != place.item


@statement("p", r"Table as in (\w+/\S+): (.+)")
def same_table(place: Place, found: re.Match[str]) -> None:
    first = [place.paper.first_with_table(table) for table in place.below.tables if table.caption == found[2]]
    assert found[1] in first
    assert found[1] != place.item


@statement("p", r"Figure as in (\w+/\S+): (.+)")
def same_figure(place: Place, found: re.Match[str]) -> None:
    assert found[2] in place.below.figures
    assert found[1] == place.paper.first_with_figure(found[2]) != place.item


@statement("li", r"(\S+) \((.+?)\): (.+)")
def note(place: Place, found: re.Match[str]) -> None:
    (one,) = (one for one in notes_of(place.item) if str(one["id"]) == found[1])
    assert found[2] == one["kind"]
    first = next(row["id"] for row in rows_of(place.paper.name) if row["id"] in one["items"])
    assert found[3] == (plain(one["text"]) if first == place.item else f"see {first}")


def printed_of(item: str) -> dict[str, Any]:
    """Facts of a printed table or figure; for a panel, those of the whole figure."""
    known = facts(item.partition("/")[0])
    found = {one["id"]: one for one in known.get("printed", ())}
    found |= {row["id"]: row["printed"] for row in known["items"] if "printed" in row}
    entry = found.get(item, {})
    return {"rows": [], **(found[entry] if isinstance(entry, str) else entry)}


def agrees(row: dict[str, Any]) -> bool:
    a = np.array(row["per_class"], dtype=float)
    expected = [(a.mean(), row.get("tot", row.get("adv")), 0.1), (((a - a.mean()) ** 2).mean(), row.get("cv"), 0.15)]
    expected.append((a.max() - a.min(), row.get("mcd"), 0.1))
    return all(printed is None or abs(ours - printed) <= within + 1e-6 for ours, printed, within in expected)


def number(value: object) -> str:
    """A printed number as in the facts."""
    if isinstance(value, list):
        return " ".join(number(one) for one in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if float(value).is_integer() else str(float(value))
    return NONE if value is None else plain(value)
