"""Tables and texts of verdicts and measurements, for the pages and the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from classwise.papers import catalogue
from classwise.papers.claims import ClaimSummary, Verdict, summarise_claim
from classwise.papers.evidence import NOT_TESTED, Evidence, conclusive, verdict_text
from classwise.papers.measurements import Measurement
from classwise.papers.result import Result
from classwise.reporting.formatting import NONE, level, probability
from classwise.reporting.tables import Cell, Row, Table

PARTLY = "partly tested"
OPEN = "open question"


def verdict_table(verdicts: Sequence[Verdict], evidence: Evidence) -> Table:
    """Table with a row for each verdict: claim, verdict, estimate with its adjusted interval, adjusted p-value.

    The verdicts omit the settings, which `Evidence.settings` states once for the result.
    """
    rows = [
        Row(
            one.claim.partition("/")[2],
            [
                Cell(catalogue.claim(one.claim).claim, one.estimand),
                Cell(answer_text(one, evidence, short=True), one.note),
                Cell(*estimate_text(one)),
                Cell("exact" if one.exact else probability(one.adjusted).replace(" ", "\N{NO-BREAK SPACE}")),
            ],
            weak=conclusive(one, evidence) == "contradicted",
            good=conclusive(one, evidence) == "supported",
        )
        for one in verdicts
    ]
    return Table("Claims", ("claim", "statement", "verdict", "estimate", "adjusted p"), rows)


def measurement_table(measurements: Sequence[Measurement]) -> Table:
    """Table with a row for each measurement: question or claim, quantity, estimate with its interval, population."""
    rows = [
        Row(
            one.question.partition("/")[2],
            [
                Cell(catalogue.claim(one.question).claim),
                Cell(one.quantity, f"interval for {one.population}" if measurement_text(one)[1] else ""),
                Cell(*measurement_text(one)),
            ],
        )
        for one in measurements
    ]
    note = "Measurements have no verdict; their 95 % intervals are not corrected for multiple testing."
    return Table("Measurements", ("claim", "statement", "quantity", "estimate"), rows, note)


def claims_table(name: str, results_by_item: Mapping[str, Sequence[Result]]) -> Table:
    """Summary of a paper with a row for each claim: statement, the paper's figure, ours, scale, and verdict.

    Args:
        name: name of the paper.
        results_by_item: results by item, largest scale first; only the first is used. A claim shared with another
            paper also uses the items of that paper.
    """
    first = {item: results[0] for item, results in results_by_item.items() if results}
    evidence = {item: result.evidence for item, result in first.items()}
    verdicts = [(item, one) for item, result in first.items() for one in result.verdicts]
    measured: dict[str, list[tuple[str, Measurement]]] = {}
    for item, result in first.items():
        for one in result.measurements:
            measured.setdefault(one.question, []).append((item, one))
    rows = []
    for claim in catalogue.paper(name).claims:
        stated, number = [Cell(claim.claim), Cell(claim.paper)], claim.id.partition("/")[2]
        if claim.question:
            pairs = measured.get(claim.id, ())
            items = [item for item, _ in pairs]
            scales = ", ".join(dict.fromkeys(evidence[item].scale for item in items))
            ours = _ours_cell(_Ours("", one.quantity, *measurement_text(one)) for _, one in pairs)
            rows.append(Row(number, [*stated, ours, Cell(scales or NONE), question_cell(items)]))
            continue
        summary = claim_verdict(claim.id, verdicts)
        answers = set() if summary.partial else {conclusive(one, evidence[item]) for item, one in summary.verdicts}
        tests = [(item, one) for item, one in summary.verdicts if one.estimand]
        ours = _ours_cell(_Ours(", ".join(one.covers), one.estimand, *estimate_text(one)) for _, one in tests)
        scale = _scale_cell(tests, evidence)
        rows.append(
            Row(
                number,
                [*stated, ours, scale, _summary_cell(summary, evidence)],
                weak=answers == {"contradicted"},
                good=answers == {"supported"},
            )
        )
    note = (
        "The p-values of the items are corrected by Holm's procedure over all tests of the paper at the same scale; "
        "each interval is at the corresponding level."
    )
    heads = ("claim", "statement", "paper", "ours", "scale", "verdict")
    return Table("Claims of the paper and verdicts of these runs", heads, rows, note)


def claim_verdict(claim: str, verdicts: Sequence[tuple[str, Verdict]]) -> ClaimSummary:
    """Summarise the verdicts on a claim; it is "partly tested" if only some of its parts were tested."""
    return summarise_claim(claim, catalogue.claim_parts(claim), verdicts)


def claim_text(summary: ClaimSummary, evidence: Mapping[str, Evidence]) -> str:
    """Text of the verdicts on a claim as a whole; if it is partly tested, of its tested and untested parts."""
    if summary.partial:
        return partly_text(summary)
    return "; ".join(dict.fromkeys(verdict_text(one, evidence[item]) for item, one in summary.verdicts))


def partly_text(summary: ClaimSummary) -> str:
    """Text that lists the tested and the untested parts of a claim."""
    return f"{PARTLY}: {', '.join(summary.tested)}; not tested: {', '.join(summary.untested)}"


def answer_text(one: Verdict, evidence: Evidence, *, short: bool = False) -> str:
    """Text of a verdict, preceded by the parts of the claim that the test covers."""
    text = verdict_text(one, evidence, short=short)
    return f"{', '.join(one.covers)}: {text}" if one.covers else text


def estimate_text(one: Verdict) -> tuple[str, str]:
    """Texts of an estimate and of its interval."""
    if math.isnan(one.value):  # nothing was estimated
        return NONE, ""
    value = f"{one.value:+z.2f} {one.unit}".strip()
    if math.isnan(one.low):
        return value, "" if one.exact else "no interval: all resamples are equal"
    return (
        (value, "") if one.exact else (value, f"{one.low:+z.2f} to {one.high:+z.2f} ({level(one.level / one.shares)})")
    )


def measurement_text(one: Measurement) -> tuple[str, str]:
    """Texts of a measured value and of its 95 % interval."""
    if math.isnan(one.value):
        return NONE, ""
    value = f"{one.value:z.2f} {one.unit}".strip()
    return value, "" if math.isnan(one.low) else f"{one.low:z.2f} to {one.high:z.2f}"


def question_cell(items: Sequence[str]) -> Cell:
    """Cell of an open question, with the items that measure it."""
    if not items:
        return Cell(f"{OPEN}, not measured yet")
    return Cell(f"{OPEN}: see the measurements", f"measured by {_listed(items)}")


class _Ours(NamedTuple):
    """An estimate in the summary: the tested parts of the claim, what is estimated, the value and its interval."""

    parts: str
    what: str
    value: str
    interval: str


def _ours_cell(estimates: Iterable[_Ours]) -> Cell:
    """Cell of estimates without repeats; below them, what they estimate, with their intervals."""
    known = list(dict.fromkeys(estimates))
    intervals: dict[str, list[str]] = {}
    for one in known:
        intervals.setdefault(one.what, []).extend([one.interval] if one.interval else [])
    values = (f"{one.parts}: {one.value}" if one.parts else one.value for one in known)
    details = (f"{what}: {', '.join(ends)}" if ends else what for what, ends in intervals.items())
    return Cell("; ".join(values) or NONE, "; ".join(details))


def _scale_cell(tests: Sequence[tuple[str, Verdict]], evidence: Mapping[str, Evidence]) -> Cell:
    """Cell of the scales of the models behind the verdicts on a claim, and their settings; a dash without models."""
    runs = [(evidence[item], one) for item, one in tests if one.basis == "experiment"]
    settings = dict.fromkeys(known.details(one).strip(" ()") for known, one in runs)
    return Cell(", ".join(dict.fromkeys(known.scale for known, _ in runs)) or NONE, "; ".join(filter(None, settings)))


def _summary_cell(summary: ClaimSummary, evidence: Mapping[str, Evidence]) -> Cell:
    """Cell of the verdicts on a claim, each with the items that gave it."""
    if summary.partial:
        tests = [(item, one) for item, one in summary.verdicts if one.estimand]
        by_text = _by_text((answer_text(one, evidence[item], short=True), item) for item, one in tests)
        return Cell(partly_text(summary), by_text)
    if not summary.verdicts:
        return Cell("not tested yet")
    if all(not one.estimand for _, one in summary.verdicts):
        return Cell(NOT_TESTED, _by_text((one.note, item) for item, one in summary.verdicts))
    texts = dict.fromkeys(verdict_text(one, evidence[item], short=True) for item, one in summary.verdicts)
    if len(texts) == 1:
        return Cell(next(iter(texts)), _listed(item for item, _ in summary.verdicts))
    by_text = _by_text((answer_text(one, evidence[item], short=True), item) for item, one in summary.verdicts)
    return Cell("; ".join(texts), by_text)


def _by_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Distinct texts, each with its items."""
    items: dict[str, list[str]] = {}
    for text, item in pairs:
        items.setdefault(text, []).append(item)
    return "; ".join(f"{text}: {_listed(where)}" for text, where in items.items())


def _listed(items: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(items))
