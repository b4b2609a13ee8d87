"""One interval for each estimate of the committed results: in the file of a result, on the pages, in the summary."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from typing import Any

import pytest
from tools.papers_summary import BLOCK, README, papers

from .page_texts import plain
from .raw_evidence import RawEvidence
from .statements import facts, is_question
from .test_committed_numbers import PAPERS, level_of, page_of, results

INTERVAL = re.compile(r"([+-][\d.]+) to ([+-][\d.]+) \(([\d.]+) %\)")
ANSWERS = ("supported", "contradicted", "inconclusive")
OTHER_QUANTITIES = {
    ("benz20/P1.1", "62.0"),
    ("benz20/P1.3", "0.99"),
    ("benz20/P1.3", "1.0"),
    ("benz20/P3.8", "-16.0"),
    ("iclr21/E3", "0.0"),
    ("iclr21/F7", "0.0"),
    ("iclr21/T4", "-2.3"),
    ("kdd21/E2", "0.56"),
    ("kdd21/F2", "0.56"),
    ("kdd21/F3b-d", "3.2"),
}
"""Cells of tables with another quantity that has the number of a tested one by chance, by item."""


def shown(one: dict[str, Any]) -> str:
    """The interval of a verdict of a file as the pages print it; empty without one."""
    if one["exact"] or one["low"] is None:
        return ""
    ends = [f"{one[end]:+z.2f}" for end in ("low", "high")]
    return f"{ends[0]} to {ends[1]}"


@functools.cache
def verdicts_on(paper: str) -> list[tuple[str, dict[str, Any]]]:
    """Items with their tests of the claims of a paper."""
    found = [(item, one) for item, result in results().items() for one in result["verdicts"]]
    return [(item, one) for item, one in found if one["estimand"] and one["claim"].startswith(f"{paper}/")]


@functools.cache
def summary() -> dict[str, str]:
    """The generated part of the summary by paper."""
    (found,) = BLOCK.findall(README.read_text(encoding="utf-8"))
    headings = re.split(r"^### (\w+)$", found[1], flags=re.MULTILINE)[1:]
    return dict(zip(headings[::2], headings[1::2], strict=True))


def test_the_summary_is_that_of_the_verdicts() -> None:
    """To regenerate it: ``python -m tools.papers_summary``."""
    (found,) = BLOCK.findall(README.read_text(encoding="utf-8"))
    assert found[1] == papers()


@pytest.mark.parametrize("name", PAPERS)
def test_every_test_has_one_interval_and_one_answer_in_all_files(name: str) -> None:
    """Also a test that several items repeat."""
    found: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
    for _, one in verdicts_on(name):
        key = (one["claim"], one["estimand"], *one["covers"], one["value"])
        found.setdefault(key, set()).add((one["low"], one["high"], one["level"], one["adjusted"], one["answer"]))
    assert {key: values for key, values in found.items() if len(values) > 1} == {}


@pytest.mark.parametrize("name", PAPERS)
def test_the_page_has_the_intervals_of_the_files(name: str) -> None:
    """In the table of each item, and in that of all claims."""
    page, _ = page_of(name)
    for section in page.sections:
        if section.name == "claims":
            known = {shown(one) for paper in PAPERS for _, one in verdicts_on(paper)}
            small = [INTERVAL.findall(row[3].partition("|")[2]) for row in section.tables[0][1:]]
            signed = {f"{low} to {high}" for row in small for low, high, _ in row}
            assert {shown(one) for _, one in verdicts_on(name)} - {""} <= signed <= known
        elif section.name in results() and results()[section.name]["verdicts"]:
            rows = section.tables[0][1:]
            for row, one in zip(rows, results()[section.name]["verdicts"], strict=True):
                ends = INTERVAL.findall(row[3])
                assert [f"{low} to {high}" for low, high, _ in ends] == [text for text in (shown(one),) if text]


@pytest.mark.parametrize("item", sorted(results()))
def test_no_table_has_another_interval_of_a_tested_estimate(item: str) -> None:
    """A table names the claim that tests the estimate instead."""
    result = results()[item]
    values = [one["value"] for one in result["verdicts"] if one["value"] is not None and not one["exact"]]
    for table in result["tables"]:
        for text, small in (cell for row in table["rows"] for cell in row["cells"]):
            if re.fullmatch(r"[+-]?\d+\.\d+", text) and re.fullmatch(r"[-+.\d]+( to |–)[-+.\d]+", small):
                digits = len(text.partition(".")[2])
                same = [value for value in values if abs(float(text) - value) <= 0.5 * 10.0**-digits + 1e-9]
                assert not same or (item, text) in OTHER_QUANTITIES, (table["caption"], text, small)
            claim = re.fullmatch(r"tested by (C\d+)", small)
            paper = item.partition("/")[0]
            assert claim is None or any(one["claim"] == f"{paper}/{claim[1]}" for _, one in verdicts_on(paper))


@pytest.mark.parametrize("name", PAPERS)
def test_the_summary_says_what_the_verdicts_say(name: str) -> None:
    """Each test once, with its claim, estimate, interval, answer, level of evidence, attack and items."""
    lines = [line for line in summary()[name].splitlines() if line.startswith("| C")]
    rows = [[cell.replace("\\", "").strip() for cell in line.strip("|").split(" | ")] for line in lines]
    (listed,) = (line for line in summary()[name].splitlines() if line.startswith("- Inconclusive: "))
    inconclusive = listed.removeprefix("- Inconclusive: ").removesuffix(".").replace("\\", "").split("; ")
    expected, open_tests = Counter[str](), Counter[str]()
    for item, one in verdicts_on(name):
        number = one["claim"].partition("/")[2]
        claim = number + (f" ({', '.join(one['covers'])})" if one["covers"] else "")
        value = f"{one['value']:+z.2f} {one['unit']}".strip()
        ends = f"[{shown(one).replace(' to ', ', ')}] (" if shown(one) else ""
        if one["answer"] == "inconclusive":
            fits = [
                text for text in inconclusive if text.startswith(f"{claim} {value} {ends}".rstrip()) and item in text
            ]
            assert len(fits) == 1, (claim, value, ends, item)
            open_tests[fits[0]] += 1
            continue
        evidence = results()[item]["evidence"]
        words = RawEvidence.text(level_of(item), one["answer"], one["basis"], one["trainings"])
        attack = ", ".join(evidence["attacks"]) if one["basis"] == "experiment" else ""
        same = [
            row
            for row in rows
            if row[0] == claim and row[1] == plain(one["estimand"]) and row[3] == words and item in row[5].split(", ")
        ]
        assert len(same) == 1, (claim, one["estimand"], words)
        assert same[0][2].startswith(f"{value} {ends}" if ends else f"{value}, "), (same[0], value, ends)
        assert same[0][4] == (attack or "-")
        expected[" | ".join(same[0])] += 1
    assert len(expected) == len(rows), "a row without a verdict"
    assert len(open_tests) == len(inconclusive), "an entry without a verdict"
    for one in facts(name)["claims"]:
        number = one["id"].partition("/")[2]
        assert re.search(rf"\b{number}\b", summary()[name]), (number, is_question(one["id"]))


def test_the_hand_written_part_has_no_verdict_of_the_papers() -> None:
    """Verdicts are generated only; the words are those of the verdicts."""
    text = README.read_text(encoding="utf-8")
    (found,) = BLOCK.findall(text)
    rest = text.replace("".join(found), "")
    assert not re.search(r"[Ss]upported|[Nn]ot observed|\b(kdd21|iclr21|benz20|cfa23)/[CTFEP]\d", rest)


def test_evidence_names_the_attacks() -> None:
    """An item with audits names their attacks and threats."""
    for item, result in results().items():
        evidence = result["evidence"]
        assert all(re.fullmatch(r"[\w-]+ in Linf:[\d./]+", one) for one in evidence["attacks"]), item
        only_clean = {"benz20/P4.1"}
        assert bool(evidence["attacks"]) == (bool(evidence["test_images"]) and item not in only_clean), item
    assert json.dumps(results()["kdd21/T4"]["evidence"]["attacks"]) == '["tpgd in Linf:8/255"]'
