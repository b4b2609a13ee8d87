"""Committed results in docs/results/papers: their numbers agree with each other, with their pages and the summary."""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from markupsafe import escape
from scipy import stats
from tools.papers_summary import BLOCK, FRONT, README, findings
from tools.papers_summary import papers as summary

from classwise.papers import catalogue
from classwise.papers.catalogue import experiment
from classwise.papers.page import MARKS, compact, write_pages
from classwise.papers.result import EXACT, Result, stored_results
from classwise.papers.scales import NAMES as SCALES
from classwise.papers.store import Store
from classwise.papers.tables import DECIDED, Overview, findings_sentence, overviews
from classwise.stats.counts import ClassCounts
from classwise.stats.metrics.variance import variance_interval

from .test_facts import ALPHA, discrepancy_ends, interval_of, shows

COMMITTED = Path(__file__).parents[2] / "docs/results/papers"
RESULTS = sorted((COMMITTED / "results").glob("*/*/*.json"))
PAPERS = catalogue.OWN
CLASS_NOTE = "95 % confidence intervals for new images of the class with the model fixed."
OTHER_QUANTITIES = {
    ("benz20/P1.1", "62.0"),
    ("benz20/P1.3", "0.99"),
    ("benz20/P1.3", "1.0"),
    ("benz20/P3.8", "-9.4"),
    ("iclr21/T4", "-1.4"),
    ("iclr21/T5", "+0.2"),
    ("kdd21/F3b-d", "3.2"),
    ("kdd21/T3", "-0.6"),
    ("kdd21/T3", "-1.4"),
}
"""Cells of tables with another quantity that has the number of a tested one by chance, by item."""


LARGEST = 640 * 1024
"""Bytes of a page."""


FAMILIES = sorted({(file.parts[-3], file.stem) for file in RESULTS})
"""Pairs of a paper and a scale, whose tests are corrected jointly."""
RESULT_IDS = sorted(("/".join(file.parts[-3:-1]), file.stem) for file in RESULTS)
"""Pairs of an item and a scale."""


@functools.cache
def results() -> dict[tuple[str, str], dict[str, Any]]:
    """Item and scale to the result."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in RESULTS]
    return {(result["item"], result["evidence"]["scale"]): result for result in found}


@functools.cache
def verdicts_on(paper: str, scale: str) -> list[tuple[str, dict[str, Any]]]:
    """The tests of the items of a paper at a scale, each with its item."""
    items = {item: result for (item, at), result in results().items() if at == scale and item.startswith(f"{paper}/")}
    return [(item, verdict) for item, result in items.items() for verdict in result["verdicts"] if verdict["estimand"]]


@functools.cache
def page_of(paper: str, folder: Path) -> str:
    return write_pages([paper], COMMITTED, folder)[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: "-".join((*file.parts[-3:-1], file.stem)))
def test_results_match_the_current_experiments(file: Path) -> None:
    """The file has its item and scale, and no absolute paths."""
    result = Result.load(file)
    assert result.scale in experiment(result.item).scales
    assert (result.item, f"{result.scale}.json") == ("/".join(file.parts[-3:-1]), file.name)
    assert all(catalogue.claim(verdict.claim).id == verdict.claim for verdict in result.verdicts)
    assert {key: result.to_json()[key] for key in ("evidence", "verdicts", "measurements")} == {
        key: json.loads(file.read_text(encoding="utf-8"))[key] for key in ("evidence", "verdicts", "measurements")
    }
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", file.read_text(encoding="utf-8"))
    # An item with audits names their attacks and threats.
    assert all(re.fullmatch(r"[\w-]+ in Linf:[\d./]+", attack) for attack in result.evidence.attacks)
    only_clean = {"benz20/P4.1"}
    assert bool(result.evidence.attacks) == (bool(result.evidence.test_images) and result.item not in only_clean)


@pytest.mark.parametrize("file", [file for file in RESULTS if file.stem == "reduced"], ids=lambda file: file.parts[-2])
def test_a_small_result_beside_a_reduced_one_has_other_data(file: Path) -> None:
    """Otherwise its tests are superseded, and would only widen the intervals of the others at its scale."""
    small = file.with_name("small.json")
    data = {one: set(Result.load(one).evidence.data) for one in (file, small) if one.is_file()}
    assert len(data) == 1 or data[small] - data[file]


@pytest.mark.parametrize(("paper", "scale"), FAMILIES)
def test_verdicts_follow_from_p_values_and_intervals(paper: str, scale: str) -> None:
    """By Holm's procedure over all tests of a paper at a scale, each once, computed by NumPy's functions."""
    sampled = [verdict for _, verdict in verdicts_on(paper, scale) if not verdict["exact"]]
    keys = {(v["claim"], v["estimand"], *v["covers"], v["value"], v["p_value"]): v["p_value"] for v in sampled}
    order = np.sort([*keys.values()])
    steps = np.minimum(np.maximum.accumulate(order * np.arange(len(order), 0, -1)), 1)
    rejected = int((steps <= ALPHA).sum())
    for verdict in sampled:
        (ranks,) = np.nonzero(order == verdict["p_value"])
        assert verdict["adjusted"] == pytest.approx(steps[ranks[-1]])
        assert any(verdict["level"] == pytest.approx(ALPHA / (len(order) - min(int(rank), rejected))) for rank in ranks)
        answer = "inconclusive"
        if verdict["low"] is not None:
            assert verdict["low"] <= verdict["value"] <= verdict["high"]
            limits = verdict["limits"] or (-math.inf, math.inf)
            assert limits[0] <= verdict["low"]
            assert verdict["high"] <= limits[1]
            if verdict["adjusted"] <= ALPHA:
                answer = "supported" if verdict["low"] > 0 else "contradicted" if verdict["high"] < 0 else answer
        assert verdict["answer"] == answer, verdict["estimand"]
    for item, verdict in verdicts_on(paper, scale):
        known = {part for claim, part in catalogue.claim_parts(verdict["claim"]) if claim == verdict["claim"] and part}
        assert bool(verdict["covers"]) == bool(known), (item, verdict["claim"])
        assert not verdict["exact"] or verdict["answer"] == ("supported" if verdict["value"] > 0 else "contradicted")


def test_every_test_has_one_interval_and_one_answer_in_all_files() -> None:
    """Also a test that several items repeat."""
    found: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
    for family in FAMILIES:
        for _, verdict in verdicts_on(*family):
            key = (*family, verdict["claim"], verdict["estimand"], *verdict["covers"], verdict["value"])
            shown = (verdict["low"], verdict["high"], verdict["level"], verdict["adjusted"], verdict["answer"])
            found.setdefault(key, set()).add(shown)
    assert {key: values for key, values in found.items() if len(values) > 1} == {}


@pytest.mark.parametrize(("item", "scale"), RESULT_IDS)
def test_no_table_has_another_interval_of_a_tested_estimate(item: str, scale: str) -> None:
    """A table names the claim that tests the estimate instead. Zeros are not compared: they do not identify one."""
    values = [
        verdict["value"]
        for verdict in results()[item, scale]["verdicts"]
        if verdict["value"] is not None and not verdict["exact"]
    ]
    claims = {verdict["claim"].partition("/")[2] for _, verdict in verdicts_on(item.partition("/")[0], scale)}
    for table in results()[item, scale]["tables"]:
        for text, small in (cell for row in table["rows"] for cell in row["cells"]):
            if re.fullmatch(r"[+-]?\d+\.\d+", text) and re.fullmatch(r"[-+.\d]+( to |–)[-+.\d]+", small):
                digits = len(text.partition(".")[2])
                known = values if float(text) else []
                same = [value for value in known if abs(float(text) - value) <= 0.5 * 10.0**-digits + 1e-9]
                assert not same or (item, text) in OTHER_QUANTITIES, (table["caption"], text, small)
            assert not small.startswith("tested by ") or small.removeprefix("tested by ") in claims


@functools.cache
def counts_of(text: str, small: str) -> tuple[tuple[int, int], ...]:
    """All pairs (correct, images) up to 1,200 images with this printed accuracy and interval."""
    images = np.arange(1, 1201)
    right = np.rint(float(text) / 100 * images)
    share, z = right / images, stats.norm.isf(ALPHA / 2)
    centre = (share + z**2 / (2 * images)) / (1 + z**2 / images)
    reach = z * np.sqrt(share * (1 - share) / images + z**2 / (4 * images**2)) / (1 + z**2 / images)
    exact = [
        np.nan_to_num(stats.beta.ppf(ALPHA / 2, right, images - right + 1), nan=0.0),
        np.nan_to_num(stats.beta.ppf(1 - ALPHA / 2, right + 1, images - right), nan=1.0),
    ]
    fits = abs(100 * share - float(text)) <= 0.05 + 1e-9
    for end, usual, few in zip(small.split("–"), (centre - reach, centre + reach), exact, strict=True):
        own = np.where(images * share * (1 - share) < 50, few, usual)
        fits &= abs(100 * own - float(end)) <= 0.05 + 1e-9
    return tuple(zip(right[fits].astype(int).tolist(), images[fits].tolist(), strict=True))


@pytest.mark.parametrize(("item", "scale"), RESULT_IDS)
def test_summaries_agree_with_their_classes(item: str, scale: str) -> None:
    """Class accuracies are those of some counts; total, CV, MCD and extreme classes follow from the counts."""
    classes: dict[str, list[tuple[str, str]]] = {}
    names: list[str] = []
    tables = results()[item, scale]["tables"]
    for table in tables:
        if table["note"] == CLASS_NOTE:
            names = table["heads"][1:]
            classes |= {row["name"]: [tuple(cell) for cell in row["cells"]] for row in table["rows"]}
    assert all(counts_of(*cell) for cells in classes.values() for cell in cells)
    for table in tables:
        for row in table["rows"] if "lowest" in table["heads"] else ():
            counts = [{size: right for right, size in counts_of(*cell)} for cell in classes.get(row["name"], ())]
            sizes = sorted(set.intersection(*map(set, counts))) if counts else []
            failures = []
            for size in sizes:
                try:
                    check_row(row["cells"][::2], np.array([known[size] for known in counts]), size, names)
                except AssertionError as failure:
                    failures.append(failure)
            assert len(failures) < len(sizes) or not counts, (row["name"], failures)


def check_row(cells: list[tuple[str, str]], right: Any, size: int, names: list[str]) -> None:
    values, images = right / size, np.full(len(right), size)
    (total, span), (cv, cv_span), (mcd, mcd_span), (lowest, least), (highest, most) = cells
    shows(total, 100 * values.mean())
    shows(span, *(100 * end for end in interval_of(int(right.sum()), size * len(right))))
    shows(cv, 1e4 * values.var(), digits=0 if 1e4 * values.var() >= 100 else 1)
    for text, end in zip(cv_span.split("–"), variance_interval(ClassCounts(images, right)), strict=True):
        assert float(text) == pytest.approx(1e4 * end, rel=2e-3, abs=0.5)
    shows(mcd, 100 * np.ptp(values))
    shows(mcd_span, *(100 * end for end in discrepancy_ends(right, images)))
    for text, small, end in ((lowest, least, values.min()), (highest, most, values.max())):
        assert set(text.replace(" and ", ", ").split(", ")) == {names[c] for c in np.flatnonzero(values == end)}
        shows(small, 100 * end)


def largest(paper: str) -> dict[str, dict[str, Any]]:
    """Item of a paper to its result at the largest scale, whose tables and figures the page has."""
    found = [(item, SCALES.index(scale), result) for (item, scale), result in results().items()]
    return {item: result for item, _, result in sorted(found, key=lambda one: one[:2]) if item.startswith(f"{paper}/")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_has_every_number_of_the_results(paper: str, folder: Path) -> None:
    page = page_of(paper, folder)
    assert len(page.encode()) < LARGEST
    assert "&lt;path" not in page, "a drawing is not escaped"
    page = page.replace("&#39;", "'")
    for result in largest(paper).values():
        cells = [cell for table in result["tables"] for row in table["rows"] for cell in row["cells"]]
        numbers = [f"{verdict['value']:+z.2f}" for verdict in result["verdicts"] if verdict["value"] is not None]
        ends = [f"{verdict['low']:+z.2f} to {verdict['high']:+z.2f}" for verdict in result["verdicts"]
                if verdict["low"] is not None and not verdict["exact"]]  # fmt: skip
        shown = {*(text for cell in cells for text in cell), *numbers, *ends}
        assert [text for text in shown if str(escape(text)).replace("&#39;", "'") not in page] == []


LOOK = ("class", "opacity", "font-size", "font-weight", "text-anchor")
"""Attributes of the look of a mark, which it has or inherits."""


def marks(svg: str) -> tuple[dict[tuple[str, ...], list[float]], list[tuple[str, ...]]]:
    """Boxes of the cells of a matrix by hover text and look, and places, looks and texts of the labels."""
    boxes, labels = dict[tuple[str, ...], list[float]](), list[tuple[str, ...]]()

    def visit(element: ET.Element, look: dict[str, str], title: str, grid: list[float]) -> None:
        look = look | {key: value for key, value in element.attrib.items() if key in LOOK}
        title = next((str(child.text) for child in element if child.tag == "title"), title)
        if element.tag == "g" and "transform" in element.attrib:
            grid = [float(end) for end in re.findall(r"[\d.]+", element.attrib["transform"])]
        if element.tag == "path" and look["class"].startswith("m-heat"):
            (left, top, width, height), ends = grid, re.findall(r"[\d.]+", element.attrib["d"])
            x, y, wide, high = map(float, ends[:4])
            key = (title, *(look.get(name, "") for name in LOOK[:2]))
            boxes[key] = [left + width * x, top + height * y, width * wide, height * high]
        if element.tag == "text":
            place = (element.get(name, "") for name in ("x", "y", "transform"))
            labels.append((*place, *(look.get(name, "") for name in LOOK), str(element.text)))
        for child in element:
            visit(child, look, title, grid)

    visit(ET.fromstring(svg), {}, "", [0, 0, 1, 1])
    return boxes, sorted(labels)


@pytest.mark.parametrize("item", ["kdd21/F2", "kdd21/F4a", "benz20/P2.1", "cfa23/F4"])
def test_a_page_shortens_drawings_without_changing_them(item: str) -> None:
    for figure in largest(item.partition("/")[0])[item]["figures"]:
        short = compact(figure["svg"])
        assert len(short) <= len(figure["svg"])
        (cells, labels), (same_cells, same_labels) = marks(figure["svg"]), marks(short)
        assert labels == same_labels
        assert cells.keys() == same_cells.keys()
        assert all(same_cells[key] == pytest.approx(cells[key], abs=0.11) for key in cells)


@pytest.mark.parametrize("paper", PAPERS)
def test_no_page_says_more_than_its_evidence(paper: str, folder: Path) -> None:
    """Results at small scale neither hold nor fail: claims are supported, not observed or inconclusive."""
    own = re.sub(r"<style>.*?</style>", "", page_of(paper, folder), flags=re.DOTALL)
    for claim in catalogue.paper(paper).claims:
        for words in (claim.paper, claim.paper.partition("; ")[0]):  # those of the paper
            own = own.replace(str(escape(words)), "")
    assert not re.search(r"\b(holds|hold|refuted?|confirmed)\b", own)


def test_the_last_point_of_a_curve_is_the_end_of_training() -> None:
    result = largest("kdd21")["kdd21/F1"]
    ends = [f">worst {row['cells'][1][0]}<" for row in result["tables"][0]["rows"]]
    for end, figure in zip(ends, result["figures"], strict=True):
        assert end in figure["svg"]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_document_has_the_same_verdicts_and_numbers(paper: str, folder: Path) -> None:
    """To regenerate them: ``python -m tools.papers_summary``. README, the summary and the chart of the page agree."""
    stored = stored_results(Store(COMMITTED))
    sentence, found = findings_sentence(paper, stored), overviews(paper, stored)
    front, text = (BLOCK.search(file.read_text(encoding="utf-8")).group(2) for file in (FRONT, README))  # type: ignore[union-attr]
    assert (front, text) == (findings(), summary())
    pattern = rf"^- {paper}, [^:]*: (\d+) of (\d+) supported(?: \((\d+) by [^)]*\))?, (\d+) not observed$"
    (short,) = re.findall(pattern, front, re.MULTILINE)
    own = text.partition(f"### {paper}\n")[2].partition("\n### ")[0]
    assert sentence in " ".join(own.split())
    page = page_of(paper, folder)
    assert f">{sentence}<" in page
    chart = page[page.index('<section id="overview">') : page.index('<section id="claims">')]
    rows = dict(re.findall(r'<tr id="(C\d+)">(.*?)(?=<tr|</tbody)', chart, re.DOTALL))
    assert set(rows) == {one.claim.id.partition("/")[2] for one in found}
    for one in found:
        number = one.claim.id.partition("/")[2]
        (line,) = re.findall(rf"^\| {number}[:,] .*$", own, re.MULTILINE)
        row = unescape(rows[number])
        title, mark, ours, scale, needed = line.replace("\\", "").strip("| ").split(" | ")
        item = f", {one.shown[0].item.removeprefix(f'{paper}/')}" if one.shown else ""
        assert title == f"{number}{item}: {one.claim.title}"
        remark = mark.removeprefix(mark := f"{MARKS[one.whole]} {one.whole}")
        data = "" if one.data == "cifar10" else one.data
        assert scale == (", ".join(filter(None, (one.scales, data))) or "–")
        basis = one.shown[1].basis if one.shown else "experiment"
        supported, total = parts_supported(one)
        if supported and one.whole in ("inconclusive", "not observed"):
            assert remark == f", {supported} of {total} parts supported"
        else:
            assert remark in ("", ", by construction", f", {EXACT.get(basis)}")
        assert (basis in EXACT and ("parts" not in remark)) == (remark in {f", {words}" for words in EXACT.values()})
        assert not remark or f">{remark.removeprefix(', ')}" in row
        assert f">{mark}<" in row
        assert one.claim.title in row
        decides = f"{', '.join(one.shown[1].covers)}: " if one.shown and one.whole == "not observed" else ""
        assert ours.startswith(decides.removeprefix(": "))
        ours = ours.removeprefix(decides.removeprefix(": "))
        estimate, _, span = re.sub(r" \[(\S+), (\S+)\]", r", \1 to \2", ours).partition(", ")
        span, _, adjusted = span.partition("; ")
        assert f">{estimate}<" in row
        assert f">{span}" in row or not span
        assert adjusted in row
        needed, _, never = needed.partition("cannot be tested: ")
        assert never == ", ".join(one.claim.untestable)
        assert all(f"{part} cannot be tested: {reason}" in page for part, reason in one.claim.untestable.items())
        needed = needed.removesuffix("; ")
        assert f"{needed} would decide" in row or re.search(rf">{re.escape(needed)}(;|\n)", row) or needed in ("", "–")
    count = Counter(one.whole for one in found)
    assert (int(short[0]), int(short[3])) == (count["supported"], count["not observed"])
    assert int(short[1]) == sum(count[kind] for kind in DECIDED)
    assert re.findall(r"\((\d+) by exact computation\)", sentence) == [number for number in short[2:3] if number]
    assert [int(number) for number in re.findall(r" (\d+) (?=supp|not|inc)", sentence)] == [
        count[kind] for kind in DECIDED if count[kind]
    ]
    main = [one for one in found if one.claim.main]
    assert main
    assert all(f"“{one.claim.title}”: {one.whole}" in sentence for one in main)
    assert [*rows][: len(main)] == [one.claim.id.partition("/")[2] for one in main]


def test_the_summary_is_short() -> None:
    text = README.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 200
    rest = BLOCK.sub("", text)  # the verdicts are generated only
    rest = rest.replace("if it is supported", "")
    assert not re.search(r"[Ss]upported|[Nn]ot observed|\b(kdd21|iclr21|benz20|cfa23)/[CTFEP]\d", rest)


def parts_supported(one: Overview) -> tuple[int, int]:
    """The parts of a claim that every test of them at the largest scale supports, and all parts."""
    parts = {*catalogue.claim_parts(one.claim.id)}
    parts |= {(verdict.claim, part) for _, verdict in one.summary.tests for part in verdict.covers or ("",)}
    supported = 0
    for claim, part in parts:
        tests = [(r, v) for r, v in one.summary.tests if v.claim == claim and part in (v.covers or ("",))]
        scale = max((SCALES.index(result.scale) for result, _ in tests), default=None)
        answers = [verdict.answer for result, verdict in tests if SCALES.index(result.scale) == scale]
        supported += bool(answers) and {*answers} == {"supported"}
    return supported, len(parts)


@pytest.mark.parametrize("paper", PAPERS)
def test_the_models_of_a_page_are_those_of_its_results(paper: str, folder: Path) -> None:
    page = page_of(paper, folder)
    models = page[page.index('<section id="models">') :]
    for (item, scale), result in results().items():
        if item.startswith(f"{paper}/"):
            rows = models.partition(f"<caption>Models at {scale} scale")[2].partition("</table>")[0]
            for key in result["runs"]:
                known = rows.partition(f"{key[:8]}: ")[2].partition(";")[0].partition("</small>")[0]
                assert f'"#{item}"' in known, (item, key)
    for item, result in largest(paper).items():
        section = page[page.index(f'<section id="{item}"') :]
        named = section.partition("Models: ")[2].partition(". ")[0]
        assert all(f"{key[:8]}" in named and name in named for key, name in result["runs"].items())


def test_public_reruns_are_on_the_page_with_their_source(folder: Path) -> None:
    cited = [(item, one) for item in catalogue.items().values() for one in item.reruns]
    assert {item.id for item, _ in cited} == {"benz20/F2", "kdd21/F4b"}
    for item, one in cited:
        assert one.source.startswith("https://github.com/")
        assert f"{one.what} Source: {one.source.removeprefix('https://')}" in unescape(page_of(item.paper, folder))


def test_an_inconclusive_interval_without_zero_is_nowhere_without_its_adjusted_p_value(folder: Path) -> None:
    found = [(paper, one) for paper, scale in FAMILIES for _, one in verdicts_on(paper, scale)]
    for paper, one in found:
        if one["answer"] != "inconclusive" or one["low"] is None or one["low"] <= 0 <= one["high"]:
            continue
        ends = f"{one['low']:+z.2f} to {one['high']:+z.2f} ("
        texts = [BLOCK.search(README.read_text(encoding="utf-8")).group(2), page_of(paper, folder)]  # type: ignore[union-attr]
        for place in (text[at.start() :] for text in texts for at in re.finditer(re.escape(ends), text)):
            assert re.match(r"[^)]*\); adjusted p ", place), place[:80]


def test_the_counts_over_all_papers_are_those_of_the_rows() -> None:
    stored = stored_results(Store(COMMITTED))
    count = Counter(one.whole for paper in PAPERS for one in overviews(paper, stored) if one.whole in DECIDED)
    text, total = README.read_text(encoding="utf-8"), sum(count.values())
    decided = count["supported"] + count["not observed"]
    assert (
        f"Of {total} statements of kdd21, iclr21, benz20 and cfa23, {decided} are decided, one way or the other" in text
    )
    assert f"; {count['inconclusive']} are inconclusive, {count['not tested']} not tested." in text
    assert f"verdict: {count['inconclusive']} of {total} are inconclusive]" in text
