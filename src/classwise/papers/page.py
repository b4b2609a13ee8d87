"""HTML page of a paper: what became of each claim in one chart, then its items with tables, figures and verdicts."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from classwise.core.files.storage import check_writable, write_text
from classwise.core.settings.arguments import checked
from classwise.papers import catalogue
from classwise.papers.catalogue import Item, Note, Paper
from classwise.papers.claims import Verdict
from classwise.papers.result import Result, stored_results
from classwise.papers.scales import MODELS, NAMES
from classwise.papers.settings import comparisons, deviation_lines
from classwise.papers.store import Store
from classwise.papers.tables import (
    Overview,
    claims_table,
    deciding,
    estimate_text,
    findings_sentence,
    measurement_table,
    overviews,
    printed_parts,
    printed_table,
    verdict_table,
)
from classwise.reporting import formatting
from classwise.reporting.escape import checked_svg, visible
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import render

_WIDEST = 602
"""Width of the widest drawing in one of two columns, which are 512 pixels wide: at 0.85 of its size."""
MARKS = {"supported": "✓", "not observed": "✕", "inconclusive": "?", "not tested": "–", "open question": "…"}
"""Marks of what became of a claim."""
_CLASSES = "class 0 to 9"
WORDS = {
    "1/T": "the factor of the logits in Temperature-PGD",
    "%²": "the unit of CV",
    "AT": "adversarial training with PGD, also called Madry",
    "beta": "the weight of the attacked outputs in TRADES",
    "CFA": "class-wise calibrated fair adversarial training",
    "CCM, CCR, FAWA": "the three parts of CFA: radius by class, regularisation by class, averaging over fair epochs",
    "CV": "the variance of the class accuracies",
    _CLASSES: "of CIFAR-10: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck",
    "CVC": "the variance of an image's confidences, mean over a class",
    "EMA": "an average of the weights over the training",
    "FAT, FRL": "other methods that the paper compares",
    "HE": "hypersphere embedding; HE-LIS and HE-CMP train it with a growing 1/T",
    "lambda_1, lambda_2": "a constant in the radius of each class with CCM, and in the beta of each class with CCR",
    "homing": "errors that a model trained without the predicted class classifies correctly",
    "M_ij": "the share of the images of class i that are taken for class j",
    "MART": "adversarial training with a larger weight of misclassified images",
    "MCD": "the highest minus the lowest class accuracy",
    "N_attack": "an attack that only queries the model",
    "PGD": "projected gradient descent, an attack in small steps; Temperature-PGD multiplies the logits by 1/T",
    "superclass, superclasses": "groups of similar classes, as animals",
    "thousandths": "0.001 each",
    "total": "the accuracy over all classes",
    "TRADES": "training with clean images and the change of the outputs under attack",
}
"""Words of the chart of claims that it explains where they occur."""
_HALF = 50
"""Half of the width of an interval's drawing."""
_NAME = 8
"""Letters of the key of a training that name its model."""
_ITEM = re.compile(r"\w+/[\w.-]+")
_HIT = re.compile(r'<rect x="([\d.-]+)" y="([\d.-]+)" width="([\d.]+)" height="([\d.]+)" class="hit"/>')
_OPTIONAL = re.compile("</(?:t[dhr]|li)>")
"""End tags of cells, rows and list items, which HTML does not require."""
_SHORT = r'<path d="M\1 \2h\3v\4h-\3z"/>'
"""The area of a hover text in a drawing; as a path without a class, it takes a third less of the page."""
_CELL = re.compile(
    r'<g>(<title>[^<]*</title>)<path d="M([\d.]+) ([\d.]+)h([\d.]+)v\4h-\4z" class="(m-heat[\w-]*)"([^>]*)/>'
    r"((?:<text[^>]*>[^<]*</text>)?)</g>"
)
_CELLS = re.compile(f"(?:{_CELL.pattern})+")
_TEXT = re.compile(r'<text ((?:x="[^"]*" y|transform)="[^"]*")([^>]*)>([^<]*)</text>')
_TEXTS = re.compile(f"(?:{_TEXT.pattern}){{2,}}")


@checked
def write_pages(
    papers: Sequence[str], store: str | os.PathLike[str] | None, folder: str | os.PathLike[str]
) -> list[Path]:
    """Write a self-contained page of each paper, with all its results in a store.

    Args:
        papers: names such as ``kdd21``; empty for all papers.
        store: folder of the store; None for pages without results.
        folder: folder of the pages, which are named ``PAPER.html``.

    Returns:
        The files of the pages.

    Raises:
        ClasswiseError: if a paper is unknown, the store is missing, a result is damaged, or a page cannot be written.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [page.name for page in cw.papers.write_pages(["cfa23"], None, folder)]
        ['cfa23.html']
    """
    pages = {Path(folder, f"{name}.html"): catalogue.paper(name) for name in papers or catalogue.papers()}
    kept = None if store is None else Store(store, create=False)
    for page in pages:  # all of them before any work
        check_writable(page)
    for page, paper in pages.items():
        write_text(page, _OPTIONAL.sub("", render("paper.html", _context(paper, kept))))
    return list(pages)


def _linked(table: Table, here: Container[str]) -> Table:
    """Turn the item ids in the last column into links if the items are on this page."""

    def link(match: re.Match[str]) -> str:
        return f'<a href="#{match[0]}">{match[0].partition("/")[2]}</a>' if match[0] in here else match[0]

    def cells(row: Row) -> list[Cell]:
        *others, last = row.cells
        return [*others, Cell(last.text, Markup(_ITEM.sub(link, str(escape(visible(last.span))))))]  # noqa: S704  # escaped

    return dataclasses.replace(table, rows=[dataclasses.replace(row, cells=cells(row)) for row in table.rows])


def _context(paper: Paper, store: Store | None) -> dict[str, Any]:
    name, about, items = paper.id, paper.bibliography, paper.items
    everything = stored_results(store)
    page_results = {item.id: everything[item.id] for item in items}
    counts = {status: sum(item.status == status for item in items) for status in ("runnable", "covered", "missing")}
    done = sum(bool(results) for results in page_results.values())
    drawn: dict[str, str] = {}
    decide = [verdict for _, verdict in deciding(everything)]
    chart = [_claim(one, page_results) for one in sorted(overviews(name, everything), key=_order)] if done else []
    used = {scale for row in chart for scale in row["scale"].split(" + ")}
    return {
        "title": f"{name}: {about['title']}",
        "over": [f"classwise papers page {name}", about["venue"]],
        "headline": about["title"],
        "lead": (
            f"Items of the paper: {len(items)}; experiments: {counts['runnable']}, with a result: {done}; covered by "
            f"the library: {counts['covered']}; missing: {counts['missing']}. "
            f"{work_text([result for results in page_results.values() for result in results])}"
        ).strip(),
        "population": _population(decide),
        "findings": findings_sentence(name, everything) if done else "",
        "overview": chart,
        "scales": [(scale, MODELS[scale]) for scale in NAMES if scale in used],
        "words": _words(chart),
        "models": [_linked(table, page_results) for table in models(page_results)],
        "claims": _linked(claims_table(name, everything), page_results) if done else None,
        "done": [item.id for item in items if page_results[item.id]],
        "items": [_item(item, page_results[item.id], decide, drawn) for item in items],
    }


def _order(one: Overview) -> tuple[bool, int]:
    """Main statements are first, then decided ones."""
    return (False, 0) if one.claim.main else (True, list(MARKS).index(one.whole))


def _population(verdicts: Sequence[Verdict]) -> str:
    """What the intervals of the verdicts are for."""
    several = any(one.trainings > 1 for one in verdicts)
    models = "new trainings of the models where a result has several" if several else "the trained models"
    return f"Intervals are for new images of the same classes and {models}."


def _words(chart: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The words that the rows of the chart use, each with its meaning."""
    text = " ".join(str(row[part]) for row in chart for part in ("title", "paper", "estimate", "estimand", "why"))
    text = re.sub(r"class(es)? \d", _CLASSES, text)

    def used(words: str) -> bool:
        return any(re.search(rf"(?<![\w/]){re.escape(word)}(?![\w/])", text) for word in words.split(", "))

    return [(words, meaning) for words, meaning in WORDS.items() if used(words)]


def _claim(one: Overview, here: Container[str]) -> dict[str, Any]:
    """Values of the template for a claim in the chart."""
    result, verdict = one.shown or (None, None)
    item = result.item if result else ""
    return {
        "id": one.claim.id.partition("/")[2],
        "title": one.claim.title,
        "main": one.claim.main,
        "remark": one.remark,
        "whole": one.whole,
        "mark": MARKS[one.whole],
        "scale": one.scales,
        "data": one.data,
        "item": item,
        "linked": item in here,
        "paper": one.claim.number,
        "why": one.why,
        "estimate": estimate_text(verdict) if verdict else None,
        "estimand": verdict.estimand if verdict else "",
        "interval": interval(verdict) if verdict else None,
    }


def interval(one: Verdict) -> tuple[float, float, float]:
    """Places of the low end, the estimate and the high end of an interval in its drawing; zero is in the middle.

    Each interval has its own scale, so that it fits.
    """
    ends = [one.value if math.isnan(end) else end for end in (one.low, one.value, one.high)]
    largest = max(map(abs, ends)) or 1.0
    low, value, high = (round(_HALF * (1 + end / largest), 1) for end in ends)
    return low, value, high


def models(results_by_item: Mapping[str, Sequence[Result]]) -> list[Table]:
    """Table of the trained models of a page at each scale: the trainings of each recipe, with the items that use them.

    Args:
        results_by_item: the results of the page.
    """
    tables = []
    for scale in NAMES:
        items: dict[str, dict[str, list[str]]] = {}
        for result in (one for results in results_by_item.values() for one in results if one.scale == scale):
            for key, recipe in result.runs.items():
                items.setdefault(recipe, {}).setdefault(key.partition("-")[0], []).append(result.item)
        if not items:
            continue
        several = [recipe for recipe in sorted(items) if len(items[recipe]) > 1]
        note = (
            f"Results at {scale} scale rest on different trainings of {formatting.listed(several)}: their data, "
            "settings or arithmetic differ. Only results with the same model are about the same weights."
        )
        rows = []
        for recipe, of in sorted(items.items()):
            named = (f"{key[:_NAME]}: {', '.join(dict.fromkeys(where))}" for key, where in of.items())
            rows.append(Row(recipe, [Cell(f"{len(of)}"), Cell("", "; ".join(named))]))
        heads = ("recipe", "trainings", "models and their items")
        tables.append(Table(f"Models at {scale} scale", heads, rows, note if several else ""))
    return tables


def compact(svg: str) -> str:
    """Shorten a drawing without changing how it looks.

    Hover areas are paths. The cells of a matrix have whole coordinates, in units of a cell. Labels that follow each
    other state their common look once.
    """
    return _TEXTS.sub(_by_look, _CELLS.sub(_in_units, _HIT.sub(_SHORT, svg)))


def _in_units(cells: re.Match[str]) -> str:
    """The cells of a matrix with their hover texts, a group for each style, followed by their labels."""
    found = _CELL.findall(cells[0])
    (left, columns, width), (top, rows, height) = (
        _places([float(cell[axis]) for cell in found], float(found[0][3])) for axis in (1, 2)
    )
    paths: dict[str, str] = {}
    for column, row, (title, *_, style, look, _) in zip(columns, rows, found, strict=True):
        paths[style] = f'{paths.get(style, "")}<path d="M{column} {row}h1v1h-1z"{look}>{title}</path>'
    place = f"translate({left:g} {top:g})scale({width:.6g} {height:.6g})"
    groups = (f'<g class="{style}" transform="{place}">{drawn}</g>' for style, drawn in paths.items())
    return "".join([*groups, *(cell[-1] for cell in found)])


def _by_look(labels: re.Match[str]) -> str:
    """Labels that follow each other; those of one look are a group."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for place, look, text in _TEXT.findall(labels[0]):
        alike.setdefault(look, []).append((place, text))
    drawn = []
    for look, texts in alike.items():
        group = look and len(texts) > 1
        own = "".join(f"<text {place}{'' if group else look}>{text}</text>" for place, text in texts)
        drawn.append(f"<g{look}>{own}</g>" if group else own)
    return "".join(drawn)


def _places(ends: Sequence[float], side: float) -> tuple[float, list[int], float]:
    """The smallest coordinate, those of all cells from it in units of a cell, and the unit, about ``side``."""
    first, last = min(ends), max(ends)
    unit = (last - first) / max(1, round((last - first) / side)) or side
    return first, [round((end - first) / unit) for end in ends], unit


def _wide(svg: str) -> bool:
    """Whether a drawing would be too small in one of two columns."""
    return float(re.findall(r' width="([\d.]+)"', svg)[0]) > _WIDEST


def _item(item: Item, results: Sequence[Result], decide: Sequence[Verdict], shown: dict[str, str]) -> dict[str, Any]:
    """Values of the template for an item.

    Args:
        item: the item.
        results: its results, largest scale first; of the others, only verdicts that still decide a part of a claim.
        decide: the verdicts that decide.
        shown: drawing, table or list of deviations to the first item of the page that has it; extended by this item.
    """

    def first(content: object) -> str:
        """The first item that shows the content; empty if it is this item."""
        place = shown.setdefault(content if isinstance(content, str) else repr(content), item.id)
        return "" if place == item.id else place

    table = printed_table(item.id)
    return {
        "id": item.id,
        "kind": item.kind,
        "title": item.title,
        "section": item.section,
        "parameters": item.parameters,
        "finding": item.finding,
        "status": item.status,
        "command": item.command,
        "missing": item.missing,
        "covered_by": ", ".join(item.covered_by or item.same_as),
        "reruns": item.reruns,
        "notes": [(note, _first_with(note, item.paper)) for note in item.notes],
        "printed": table,
        "results": [
            {
                "scale": result.scale,
                "setting": result.setting,
                "tables": [
                    (table, first(table), printed_parts(table, item.id, result.scale)) for table in result.tables
                ],
                "figures": [
                    (Markup(compact(str(checked_svg(figure.svg)))), figure.caption, _wide(figure.svg))  # noqa: S704  # checked
                    for figure in result.figures
                    if not first(figure.svg)
                ],
                "same_figures": [(place, figure.caption) for figure in result.figures if (place := first(figure.svg))],
                "evidence": result.evidence.settings,
                "verdicts": _verdicts(result.verdicts, result),
                "measurements": measurement_table(result.measurements) if result.measurements else None,
                "facts": f"{_models(result)}{_time(result)}, classwise {result.version}",
                "deviations": (lines := _deviations(result)),
                "same_deviations": first(lines) if lines else "",
            }
            for result in results[:1]
        ],
        "smaller": [
            (result.scale, _verdicts([one for one in result.verdicts if any(one is other for other in decide)], result))
            for result in results[1:]
        ],
    }


def _verdicts(verdicts: Sequence[Verdict], result: Result) -> Table | None:
    return verdict_table(verdicts, result.evidence) if verdicts else None


def _first_with(note: Note, paper: str) -> str:
    """The first item of a page that a note is about, which shows its text."""
    return next(item.id for item in catalogue.items().values() if item.paper == paper and item.id in note.items)


def _deviations(result: Result) -> list[str] | None:
    """Deviations from the settings of the paper at the scale of a result; None if they are not compared."""
    compared = comparisons(result.item, max(1, result.evidence.trainings)).get(result.scale)
    return None if compared is None or compared.reason else deviation_lines(compared)


def work_text(results: Sequence[Result]) -> str:
    """Sentence on the total time of results, with shared trainings and audits counted once; empty without results."""
    if not results:
        return ""
    durations = {key: seconds for result in results for key, seconds in (result.work or {}).items()}
    known = sum(seconds for seconds in durations.values() if seconds is not None)
    total = known + sum(result.own_seconds for result in results)
    complete = all(result.work is not None for result in results) and None not in durations.values()
    bound = "" if complete else "at least "
    return f"Total time: {bound}{total:,.1f} s, each training and audit counted once."


def _models(result: Result) -> str:
    """The models of a result by their recipes, each named by the first letters of its key; empty without any."""
    keys: dict[str, list[str]] = {}
    for key, recipe in result.runs.items():
        keys.setdefault(recipe, []).append(key[:_NAME])
    named = "; ".join(f"{recipe} {', '.join(names)}" for recipe, names in keys.items())
    return f"Models: {named}. " if named else ""


def _time(result: Result) -> str:
    """Text of the time of a result, including its trainings and audits if known."""
    if result.work is None:
        return f"{result.seconds:,.1f} s excluding trainings and audits loaded from the store"
    unknown = sum(seconds is None for seconds in result.work.values())
    return f"{'at least ' if unknown else ''}{result.seconds:,.1f} s including all trainings and audits"
