"""Numbers of the pages of the committed results, recomputed from the JSON results independently of the page code."""

from __future__ import annotations

import functools
import json
import math
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from classwise.papers.page import paper_page
from classwise.papers.store import Store

from .page_tables import SUMMARY, cell, check_measured, check_ours
from .page_texts import NONE, Page, Section, number, plain, printed_of
from .raw_evidence import RawEvidence, RawMeasurement
from .statements import (
    ALPHA,
    RawTest,
    Shown,
    facts,
    interval_of,
    is_question,
    listed,
    parts_of,
    rows_of,
    shows,
    variance_bounds,
    wilson_of,
    words_of,
    z_of,
)
from .whole_claims import whole

COMMITTED = Path(__file__).parents[2] / "docs/results/papers"
PAPERS = ("kdd21", "iclr21", "benz20", "cfa23")
CLASS_NOTE = "Small print: 95 % confidence intervals for new images of the class with the model fixed."


def nan(value: float | None) -> float:
    return math.nan if value is None else value


@functools.cache
def results() -> dict[str, dict[str, Any]]:
    """Item to its result; all results have one scale."""
    files = sorted((COMMITTED / "results").glob("*/*/*.json"))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    assert len({one["item"] for one in found}) == len(found)
    return {one["item"]: one for one in found}


def level_of(item: str) -> RawEvidence:
    known = results()[item]["evidence"]
    lists = {
        key: tuple(known[name])
        for key, name in (
            ("data", "data"),
            ("images", "train_images"),
            ("epochs", "epochs"),
            ("networks", "networks"),
            ("widths", "widths"),
        )
    }
    return RawEvidence(known["scale"], known["trainings"], **lists)


def text_of(item: str, one: dict[str, Any], answer: str, *, short: bool = False) -> str:
    if not one["estimand"]:
        return "not tested"
    return level_of(item).text(answer, one["basis"], one["trainings"], short=short)


@functools.cache
def page_of(name: str) -> tuple[Page, dict[str, Section]]:
    with tempfile.TemporaryDirectory() as folder:
        file = paper_page(name, Store(COMMITTED), Path(folder) / "page.html")
        page = Page(file.read_text(encoding="utf-8"))
    return page, {section.name: section for section in page.sections}


def answers(paper: str) -> dict[str, list[tuple[dict[str, Any], str, float, float]]]:
    """Item to its verdicts, each with answer, adjusted p-value and level after Holm over the paper."""
    everything = [(item, one) for item, found in results().items() for one in found["verdicts"]]
    everything = [(item, one) for item, one in everything if item.startswith(f"{paper}/")]
    p = sorted(nan(one["p_value"]) for _, one in everything if not one["exact"] and one["p_value"] is not None)
    adjusted = np.minimum(np.maximum.accumulate(np.array(p) * np.arange(len(p), 0, -1)), 1)
    rejected, ranks = int((adjusted <= ALPHA).sum()), dict[float, int]()
    found: dict[str, list[tuple[dict[str, Any], str, float, float]]] = {}
    for item, one in everything:
        item_verdicts = found.setdefault(item, [])
        if one["exact"] or one["p_value"] is None:
            item_verdicts.append((one, one["answer"], math.nan, ALPHA))
            continue
        last = len(p) - 1 - p[::-1].index(one["p_value"])
        ranks[one["p_value"]] = ranks.get(one["p_value"], -1) + 1
        answer = one["answer"] if adjusted[last] <= ALPHA else "inconclusive"
        item_verdicts.append(
            (one, answer, float(adjusted[last]), ALPHA / (len(p) - min(p.index(one["p_value"]), rejected)))
        )
    return found


@dataclass(frozen=True)
class Artifacts:
    """The interface of a paper that `whole` uses."""

    answered: dict[str, list[tuple[dict[str, Any], str]]]

    def measured(self) -> Iterable[tuple[str, set[str]]]:
        for item in [row["id"] for name in PAPERS for row in rows_of(name)]:
            yield item, {one["question"] for one in results().get(item, {}).get("measurements", ())}

    def newest(self) -> Iterable[tuple[str, list[Shown], dict[str, str]]]:
        for item in [row["id"] for name in PAPERS for row in rows_of(name)]:
            some = self.answered.get(item, [])
            raws = [
                (
                    RawTest(
                        one["claim"],
                        (),
                        "",
                        "",
                        tuple(one["covers"]),
                        None,
                        basis=one["basis"],
                        trainings=one["trainings"],
                    ),
                    answer,
                )
                for one, answer in some
            ]
            tests = [
                Shown(raw, level_of(item), answer, 0, 0, 1, (), 0)
                for (raw, answer), (one, _) in zip(raws, some, strict=True)
                if one["estimand"]
            ]
            yield item, tests, {one["claim"]: one["note"] for one, _ in some if not one["estimand"]}


@functools.cache
def printed_answers() -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Item to its verdicts with the answers printed on its page, which the test of verdicts recomputes."""
    found: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for item, result in results().items():
        section = page_of(item.partition("/")[0])[1][item]
        if result["verdicts"]:
            rows = section.tables[0][1:]
            printed = [row[2].partition("|")[0].rpartition(": ")[2] for row in rows]
            words = [
                {
                    text_of(item, one, answer, short=True): answer
                    for answer in ("supported", "contradicted", "inconclusive")
                }
                for one in result["verdicts"]
            ]
            found[item] = [
                (one, known[text]) for one, known, text in zip(result["verdicts"], words, printed, strict=True)
            ]
    return found


@pytest.mark.parametrize("name", PAPERS)
def test_verdicts_follow_from_p_values_and_intervals(name: str) -> None:
    for item, found in answers(name).items():
        rows = page_of(name)[1][item].tables[0][1:]
        for row, (one, answer, adjusted, level) in zip(rows, found, strict=True):
            assert row[:2] == [one["claim"].partition("/")[2], cell(words_of(one["claim"])["claim"], one["estimand"])]
            covers = one.get("covers", [])
            known = {part for claim, part in parts_of(one["claim"]) if claim == one["claim"] and part}
            assert bool(covers) == bool(known and one["estimand"]), "covers must name the tested parts of the claim"
            value, _, span = row[3].partition("|")
            if not one["estimand"]:
                assert (row[2], value, row[4]) == (cell("not tested", one["note"]), NONE, NONE)
                continue
            text, _, unit = value.partition(" ")
            shows(text, one["value"], 2, sign=True)
            assert unit == one["unit"]
            if one["exact"]:
                assert (span, row[4]) == ("", "exact")
            else:
                assert row[4] == "< 0.001" if adjusted < 0.001 else abs(float(row[4]) - adjusted) <= 0.0005 + 1e-9
                check_interval(item, one, span, answer)
            ends = re.findall(r"([+-][\d.]+) to ([+-][\d.]+)", span)
            shown = answer
            if ends and (float(ends[0][0]) < 0 < float(ends[0][1])):
                shown = "inconclusive"  # the rescaled interval is wider than the p-value implies
            assert one["text"] == text_of(item, one, one["answer"]), "the text of the stored result"
            text = text_of(item, one, shown, short=True)
            assert row[2] == cell((f"{', '.join(covers)}: " if covers else "") + text, one["note"])
            assert level <= ALPHA


def check_interval(item: str, one: dict[str, Any], span: str, answer: str) -> None:
    """Check the stored interval, rescaled by normal quantiles to the printed coverage."""
    if one["low"] is None:
        assert span == "no interval: all resamples are equal"
        return
    found = re.fullmatch(r"(\S+) to (\S+) \(([\d.]+) %\)", span)
    assert found is not None, (item, span)
    levels = [
        level for level in _levels(item, one) if abs(100 - 100 * level / one["shares"] - float(found[3])) < 0.0051
    ]
    assert levels, (item, span, answer)
    for level in levels:
        factor = z_of(level / one["shares"]) / z_of(one["level"] / one["shares"])
        low, high = (one["value"] - factor * (one["value"] - one[end]) for end in ("low", "high"))
        limits = one["limits"] or (-math.inf, math.inf)
        low, high = max(low, limits[0]), min(high, limits[1])
        if abs(float(found[1]) - low) <= 0.005 + 1e-9 and abs(float(found[2]) - high) <= 0.005 + 1e-9:
            return
    raise AssertionError((item, span))


def _levels(item: str, one: dict[str, Any]) -> list[float]:
    """Levels that Holm's procedure may assign to a test: those of all tests with the same p-value."""
    paper = item.partition("/")[0]
    others = [v for key, found in results().items() if key.startswith(f"{paper}/") for v in found["verdicts"]]
    p = sorted(v["p_value"] for v in others if not v["exact"] and v["p_value"] is not None)
    adjusted = np.minimum(np.maximum.accumulate(np.array(p) * np.arange(len(p), 0, -1)), 1)
    rejected = int((adjusted <= ALPHA).sum())
    return [ALPHA / (len(p) - min(rank, rejected)) for rank, value in enumerate(p) if value == one["p_value"]]


@pytest.mark.parametrize("name", PAPERS)
def test_claims_table_combines_the_items(name: str) -> None:
    page, sections = page_of(name)
    table, marks = sections["claims"].tables[0], sections["claims"].marks[0]
    kept: Any = Artifacts(printed_answers())
    assert table[0] == SUMMARY
    for row, mark, claim in zip(table[1:], marks[1:], facts(name)["claims"], strict=True):
        text, small, expected = whole(kept, claim["id"], short=True)
        stated = [claim["id"].partition("/")[2], plain(claim["claim"]), plain(claim["paper"])]
        assert [*row[:3], row[5]] == [*stated, cell(text, small)]
        assert mark == expected
        related = {claim["id"], *(one for one, _ in parts_of(claim["id"]))}
        tests = [
            (item, one) for item, result in results().items() for one in result["verdicts"] if one["claim"] in related
        ]
        tests = [(item, one) for item, one in tests if one["estimand"]]
        if not is_question(claim["id"]):
            check_ours(row[3], [(", ".join(one["covers"]), nan(one["value"]), one["unit"]) for _, one in tests])
            scales = [level_of(item).scale for item, one in tests if one["basis"] == "experiment"]
            assert row[4].partition("|")[0] == (", ".join(dict.fromkeys(scales)) or NONE)
    links = [link for section in sections.values() for link in section.links]
    assert {link[1:] for link in links} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.parametrize("name", PAPERS)
def test_times_equal_those_of_the_results(name: str) -> None:
    paper_results = [found for item, found in results().items() if item.startswith(f"{name}/")]
    (lead,) = (text for text in page_of(name)[1][""].of("p") if " items: " in text)
    assert f" {len(paper_results)} have been run." in lead
    work = [found["work"] or {} for found in paper_results]
    known = [{key: seconds for key, seconds in each.items() if seconds is not None} for each in work]
    once = {key: seconds for each in known for key, seconds in each.items()}
    own = [found["seconds"] - math.fsum(each.values()) for found, each in zip(paper_results, known, strict=True)]
    complete = known == work and all(found["work"] is not None for found in paper_results)
    assert f"time: {'' if complete else 'at least '}{math.fsum([*once.values(), *own]):,.1f} s, each" in lead
    for found in paper_results:
        texts = page_of(name)[1][found["item"]].of("p")
        level = level_of(found["item"]).settings
        each = f"Each model: {level}. " if level else ""
        bound = "at least " if None in (found["work"] or {}).values() else ""
        count = f"{len(found['runs'])} training{'' if len(found['runs']) == 1 else 's'}"
        trainings = f"{each}{count}, {bound}{found['seconds']:,.1f} s "
        assert any(text.startswith(f"{plain(found['setting'])}. {trainings}") for text in texts)


def first_place(item: str, table: dict[str, Any]) -> str:
    """The first item of the page with the same table."""
    order = [each for each in page_of(item.partition("/")[0])[1] if each in results()]
    return next(each for each in order if table in results()[each]["tables"])


@pytest.mark.parametrize("item", sorted(results()))
def test_tables_equal_the_results_and_agree_with_their_classes(item: str) -> None:
    result, section = results()[item], page_of(item.partition("/")[0])[1][item]
    first = bool(result["verdicts"]) + bool(result["measurements"])
    tables, marks = section.tables[first:], section.marks[first:]
    classes = dict[str, list[str]]()
    places = [first_place(item, table) for table in result["tables"]]
    for kept, place in zip(result["tables"], places, strict=True):
        assert (f"Table as in {place}: {plain(kept['caption'])}" in list(section.of("p"))) == (place != item)
    shown = [kept for kept, place in zip(result["tables"], places, strict=True) if place == item]
    assert len(tables) >= len(shown)
    for kept, table, mark in zip(shown, tables, marks, strict=False):
        assert table[0] == [plain(head) for head in kept["heads"]]
        rows = [[row["name"], *(cell(*one) for one in row["cells"])] for row in kept["rows"]]
        assert table[1:] == [[plain(text) for text in row] for row in rows]
        assert mark[1:] == ["weak" if row["weak"] else "good" if row["good"] else "" for row in kept["rows"]]
        if kept["note"] == CLASS_NOTE:
            classes |= {row[0]: row[1:] for row in table[1:]}
            for row in table[1:]:
                assert all(counts_of(text) for text in row[1:]), "no count of images has this accuracy and interval"
    for kept, table in zip(shown, tables, strict=False):
        for row in table[1:]:
            if "lowest" in kept["heads"] and row[0] in classes:
                names = next(one["heads"][1:] for one in result["tables"] if one["note"] == CLASS_NOTE)
                check_summary(item, table[0], row, classes[row[0]], list(names))


@pytest.mark.parametrize("item", sorted(item for item, result in results().items() if result["measurements"]))
def test_measurements_equal_the_results(item: str) -> None:
    result, section = results()[item], page_of(item.partition("/")[0])[1][item]
    rows = section.tables[bool(result["verdicts"])][1:]
    for row, one in zip(rows, result["measurements"], strict=True):
        assert row[:2] == [one["question"].partition("/")[2], plain(words_of(one["question"])["claim"])]
        value, _, span = row[3].partition("|")
        raw = RawMeasurement(one["question"], one["value"], nan(one["low"]), nan(one["high"]), one["unit"])
        check_measured(raw, value, span)
        assert row[2] == cell(one["quantity"], f"interval for {one['population']}" if span else "")


@functools.cache
def counts_of(text: str) -> tuple[tuple[int, int], ...]:
    """All pairs (correct, images) up to 1,200 images with this printed accuracy and interval."""
    value, _, small = text.partition("|")
    images = np.arange(1, 1201)
    right = np.rint(float(value) / 100 * images)
    share, z = right / images, z_of(ALPHA)
    centre = (share + z**2 / (2 * images)) / (1 + z**2 / images)
    reach = z * np.sqrt(share * (1 - share) / images + z**2 / (4 * images**2)) / (1 + z**2 / images)
    few = images * share * (1 - share) < 10
    exact = [
        np.nan_to_num(stats.beta.ppf(ALPHA / 2, right, images - right + 1), nan=0.0),
        np.nan_to_num(stats.beta.ppf(1 - ALPHA / 2, right + 1, images - right), nan=1.0),
    ]
    fits = abs(100 * share - float(value)) <= 0.05 + 1e-9
    for end, usual, less in zip(small.split("–"), (centre - reach, centre + reach), exact, strict=True):
        fits &= abs(100 * np.where(few, less, usual) - float(end)) <= 0.05 + 1e-9
    return tuple(zip(right[fits].astype(int).tolist(), images[fits].tolist(), strict=True))


def check_summary(item: str, heads: list[str], row: list[str], classes: list[str], names: list[str]) -> None:
    """Check total, CV, MCD and extreme classes of a row against its class accuracies, and the printed numbers."""
    sizes = set.intersection(*({images for _, images in counts_of(text)} for text in classes))
    assert sizes
    cells = dict(zip(("total", "CV", "MCD", "lowest", "highest"), row[1::2], strict=True))
    failures = []
    for images in sorted(sizes):
        right = [next(r for r, n in counts_of(text) if n == images) for text in classes]
        try:
            check_row(cells, right, images, names)
        except AssertionError as failure:
            failures.append(failure)
    assert len(failures) < len(sizes), (item, row[0], failures)
    known = printed_of(item)["rows"]
    for one in known:
        name = ", ".join(str(one[key]) for key in ("defence", "attack") if key in one)
        if name == row[0] and "per_class" in one:
            printed = [row[place] for place in range(2, len(row), 2)]
            low, high = min(one["per_class"]), max(one["per_class"])
            expected = [number(one.get(key)) for key in ("tot", "cv", "mcd")]
            for end in (low, high):
                labels = [str(label) for label, value in enumerate(one["per_class"]) if value == end]
                expected.append(f"class{'es' * (len(labels) > 1)} {listed(labels)}|{number(end)}")
            assert printed == expected
    assert heads[2::2] == ["printed"] * 5


def check_row(cells: dict[str, str], right: list[int], images: int, names: list[str]) -> None:
    values = np.array(right) / images
    level = 1 - (1 - ALPHA) ** (1 / len(right))
    low, high = (np.array(ends) for ends in zip(*(interval_of(one, images, level) for one in right), strict=True))
    total, small = cells["total"].split("|")
    shows(total, 100 * float(values.mean()), 1)
    ends = [100 * end for end in wilson_of(sum(right), images * len(right))]
    for text, end in zip(small.split("–"), ends, strict=True):
        shows(text, end, 1)
    variance, small = cells["CV"].split("|")
    squared = 1e4 * float(values.var())
    shows(variance, squared, 0 if squared >= 100 else 1)
    for text, end in zip(small.split("–"), variance_bounds(low, high), strict=True):
        assert abs(float(text) - 1e4 * end) <= 0.5 + 2e-3 * max(1e4 * end, 1)
    gap, small = cells["MCD"].split("|")
    shows(gap, 100 * float(np.ptp(values)), 1)
    for text, end in zip(small.split("–"), (max(low.max() - high.min(), 0), high.max() - low.min()), strict=True):
        shows(text, 100 * end, 1)
    for key, end in (("lowest", values.min()), ("highest", values.max())):
        name, accuracy = cells[key].split("|")
        assert name == listed([name for name, value in zip(names, values, strict=True) if value == end])
        shows(accuracy, 100 * end, 1)


def test_wilson_and_clopper_pearson_by_hand() -> None:
    """Reference intervals of the tests in this folder: 50 of 100, and 0 of 20."""
    assert wilson_of(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert interval_of(0, 20) == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
    assert interval_of(20, 20)[0] == pytest.approx(stats.beta.ppf(0.025, 20, 1))
