"""The page of a paper: its items in order, our tables and figures, the printed numbers, verdicts and notes."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from classwise.core.storage import write_text
from classwise.papers import catalogue
from classwise.papers.catalogue import Item
from classwise.papers.claims import ClaimSummary, Verdict, correct_jointly, summarise_claim
from classwise.papers.printed import printed_table
from classwise.papers.result import Result
from classwise.papers.scales import NAMES
from classwise.papers.store import Store
from classwise.reporting.escape import checked_svg, visible
from classwise.reporting.formatting import NONE, level, probability
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import render

_ITEM = re.compile(r"\w+/[\w.-]+")
PARTLY = "partly tested"
ANSWERS = {"holds": "holds", "does not hold": "does not hold", "inconclusive": "inconclusive at this scale"}


def paper_page(name: str, store: Store | None, path: str | os.PathLike[str]) -> Path:
    """Write one self-contained page for a paper, with every result that the store holds.

    Raises:
        ClasswiseError: for an unknown paper, a damaged result, or if the file cannot be written.
    """
    write_text(path, render("paper.html", _context(catalogue.paper(name), store)))
    return Path(path)


def results_of(item: Item, store: Store) -> list[Result]:
    """The results of an item in the store, the largest scale first."""
    files = [store.result_file(item.id, scale) for scale in reversed(NAMES)]
    return [Result.load(file) for file in files if file.is_file()]


def corrected(results: Sequence[Result]) -> list[Result]:
    """The same results, the verdicts of each paper and scale corrected together."""
    families = [(result.item.partition("/")[0], result.scale) for result in results]
    found = list(results)
    for family in dict.fromkeys(families):
        places = [place for place, other in enumerate(families) if other == family]
        verdicts = iter(correct_jointly([one for place in places for one in results[place].verdicts]))
        for place in places:
            count = len(results[place].verdicts)
            found[place] = dataclasses.replace(results[place], verdicts=tuple(itertools.islice(verdicts, count)))
    return found


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """A row for each verdict: the claim in words, the answer, the estimate with its adjusted interval."""
    rows = [
        Row(
            one.claim.partition("/")[2],
            [
                Cell(catalogue.claim(one.claim)["claim"], one.estimand),
                Cell(answer_text(one), one.note),
                Cell(*estimate_text(one)),
                Cell("exact" if one.exact else probability(one.adjusted).replace(" ", "\N{NO-BREAK SPACE}")),
            ],
            weak=one.answer == "does not hold",
            good=one.answer == "holds",
        )
        for one in verdicts
    ]
    note = (
        "p after Holm's correction over all tests of the paper at this scale; an interval has the level that the "
        "correction left for it."
    )
    return Table("Claims", ("claim", "what is claimed", "verdict", "estimate", "adjusted p"), rows, note)


def claims_table(name: str, found: Mapping[str, Sequence[Result]]) -> Table:
    """A row for each claim of a paper: what the paper found, and the verdicts of the items that ask it.

    Args:
        name: of the paper.
        found: results by item, the largest scale first, which alone counts; a claim that is another paper's is judged
            by that paper's items.
    """
    by_claim: dict[str, list[tuple[str, Verdict]]] = {}
    for item, results in found.items():
        for one in results[0].verdicts if results else ():
            by_claim.setdefault(one.claim, []).append((item, one))
    verdicts = [pair for pairs in by_claim.values() for pair in pairs]
    rows = []
    for claim in catalogue.facts(name)["claims"]:
        summary = claim_verdict(claim["id"], verdicts)
        rows.append(
            Row(
                claim["id"].partition("/")[2],
                [Cell(claim["claim"], f"The paper: {claim['paper']}"), _summary_cell(summary)],
                weak=summary.answers == ("does not hold",),
                good=summary.answers == ("holds",),
            )
        )
    return Table("What is claimed, and what these runs say", ("claim", "what is claimed", "verdict"), rows)


def claim_verdict(claim: str, verdicts: Sequence[tuple[str, Verdict]]) -> ClaimSummary:
    """Summarise the verdicts on a claim; it is "partly tested" while a part of it is not tested."""
    return summarise_claim(claim, catalogue.claim_parts(claim), verdicts)


def partly_text(summary: ClaimSummary) -> str:
    """Which parts of a claim were tested, and which were not."""
    return f"{PARTLY}: {', '.join(summary.tested)}; not tested: {', '.join(summary.untested)}"


def answer_text(one: Verdict) -> str:
    """The answer of a test; of a test of a part of a claim with that part."""
    return f"{', '.join(one.covers)}: {ANSWERS[one.answer]}" if one.covers else ANSWERS[one.answer]


def _linked(table: Table, here: Container[str]) -> Table:
    """The same table, the items in its last cells as links to them, if they are on this page."""

    def link(match: re.Match[str]) -> str:
        return f'<a href="#{match[0]}">{match[0]}</a>' if match[0] in here else match[0]

    def cells(row: Row) -> list[Cell]:
        *others, last = row.cells
        return [*others, Cell(last.text, Markup(_ITEM.sub(link, str(escape(visible(last.span))))))]  # noqa: S704  # escaped

    return dataclasses.replace(table, rows=[dataclasses.replace(row, cells=cells(row)) for row in table.rows])


def _summary_cell(summary: ClaimSummary) -> Cell:
    """The answers to one claim, each with the items that gave it."""
    if summary.partial:
        items_of = dict.fromkeys(item for item, one in summary.verdicts if one.estimand)
        return Cell(partly_text(summary), f"tested by {', '.join(items_of)}")
    items: dict[str, list[str]] = {}
    for item, one in summary.verdicts:
        items.setdefault(ANSWERS[one.answer], []).append(item)
    if not items:
        return Cell("not asked yet")
    named = {answer: ", ".join(dict.fromkeys(where)) for answer, where in items.items()}
    if len(named) == 1:
        return Cell(*named.popitem())
    return Cell("; ".join(named), "; ".join(f"{answer}: {where}" for answer, where in named.items()))


def estimate_text(one: Verdict) -> tuple[str, str]:
    """The estimate and its interval, each as text."""
    if one.value != one.value:  # NaN: nothing was estimated
        return NONE, ""
    value = f"{one.value:+z.2f} {one.unit}".strip()
    if one.low != one.low:
        return value, "" if one.exact else "no resample differs"
    return (
        (value, "") if one.exact else (value, f"{one.low:+z.2f} to {one.high:+z.2f} ({level(one.level / one.shares)})")
    )


def _context(name: str, store: Store | None) -> dict[str, Any]:
    facts = catalogue.facts(name)
    about = facts["bibliography"]
    items = [item for item in catalogue.items().values() if item.paper == name]
    everything: dict[str, list[Result]] = {item: [] for item in catalogue.items()}
    kept = [one for item in catalogue.items().values() for one in results_of(item, store)] if store is not None else []
    for result in corrected(kept):
        everything[result.item].append(result)
    found = {item.id: everything[item.id] for item in items}
    counts = {status: sum(item.status == status for item in items) for status in ("runnable", "covered", "missing")}
    done = sum(bool(results) for results in found.values())
    return {
        "title": f"{name}: {about['title']}",
        "over": [f"classwise papers page {name}", about["venue"]],
        "heading": about["title"],
        "lead": (
            f"{len(items)} items: {counts['runnable']} that run, {counts['covered']} covered by parts of the library, "
            f"{counts['missing']} that wait for something. {done} {'has' if done == 1 else 'have'} been run. "
            f"{work_text([result for results in found.values() for result in results])}"
        ).strip(),
        "population": "Intervals speak of new images of the same classes, with the trained models fixed.",
        "claims": _linked(claims_table(name, everything), found) if done else None,
        "done": [item.id for item in items if found[item.id]],
        "items": [_item(item, found[item.id]) for item in items],
    }


def _item(item: Item, results: Sequence[Result]) -> dict[str, Any]:
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
        "notes": item.notes,
        "printed": table,
        "results": [
            {
                "scale": result.scale,
                "setting": result.setting,
                "tables": result.tables,
                "figures": [(checked_svg(figure.svg), figure.caption) for figure in result.figures],
                "verdicts": verdict_table(result.verdicts) if result.verdicts else None,
                "facts": f"{_trainings(len(result.runs))}, {_time(result)}, classwise {result.version}",
            }
            for result in results
        ],
    }


def work_text(results: Sequence[Result]) -> str:
    """The time that all results took, a training or audit that several rest on counted once; empty without a result."""
    if not results:
        return ""
    made = {key: seconds for result in results for key, seconds in (result.work or {}).items()}
    known = sum(seconds for seconds in made.values() if seconds is not None)
    total = known + sum(result.own_seconds for result in results)
    complete = all(result.work is not None for result in results) and None not in made.values()
    least = "" if complete else "at least "
    return f"Together they took {least}{total:,.1f} s, each training and audit counted once."


def _time(result: Result) -> str:
    """The time of a result, with that of the trainings and audits it rests on."""
    if result.work is None:
        return f"{result.seconds:,.1f} s without the trainings and audits that were in the store already"
    unknown = sum(seconds is None for seconds in result.work.values())
    return f"{'at least ' if unknown else ''}{result.seconds:,.1f} s with all trainings and audits"


def _trainings(count: int) -> str:
    return f"{count} training" + ("" if count == 1 else "s")
