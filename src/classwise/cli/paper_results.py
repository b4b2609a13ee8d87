"""Results and forecasts of the papers' items on a terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from classwise.cli import console

if TYPE_CHECKING:
    from classwise.papers.catalogue import Note
    from classwise.papers.claims import Measurement, Verdict
    from classwise.papers.cost import Cost, Forecast
    from classwise.papers.result import Evidence, Result
    from classwise.reporting.tables import Table

NOT_INCLUDED = (
    "at most, as if every image were robust; validation during training comes on top, and work that the store already "
    "has is not subtracted"
)
COST_HEADS = ("trainings", "epochs", "training passes", "evaluation passes", "PFLOP", "GB", "hours")
"""Heads of the costs of an item."""


def cost_cells(cost: Cost) -> tuple[object, ...]:
    """The cost of items, under `COST_HEADS`."""
    passes = (f"{cost.passes:,}", f"{cost.evaluation_passes:,}")
    return (
        cost.trainings,
        f"{cost.epochs:,}",
        *passes,
        f"{cost.pflop:,.1f}",
        f"{cost.gigabytes:,.1f}",
        f"{cost.hours:,.2f}",
    )


def show_forecast(forecast: Forecast, *, json: bool, added: bool = False) -> None:
    """Print the forecast of some items and their total; ``added``: what each adds to those before it."""
    if json:
        console.show_json(dataclasses.asdict(forecast) | {"not_included": NOT_INCLUDED})
        return
    items = forecast.added if added else forecast.items
    costs = [*items.items(), *([("total", forecast.total)] if len(forecast.items) > 1 else [])]
    rows = [(name, *cost_cells(cost)) for name, cost in costs]
    console.show(["item", *COST_HEADS], rows, f"forecast at scale {forecast.scale} on {forecast.device}")
    rates = forecast.passes_per_second.items()
    console.echo(*(f"{rate:,.0f} forward passes of one image per second: {network}" for network, rate in rates))
    console.echo(NOT_INCLUDED)


def _claim_lines(results: Sequence[Result]) -> list[str]:
    """A line for each claim of several parts; its verdict requires that all parts were tested."""
    from classwise.papers import catalogue
    from classwise.papers.tables import claim_text, claim_verdict

    verdicts = [(result, verdict) for result in results for verdict in result.verdicts]
    lines = []
    for claim in dict.fromkeys(verdict.claim for _, verdict in verdicts if verdict.covers):
        text = claim_text(claim_verdict(claim, verdicts))
        lines.append(f"{claim} by this item alone: {text}: {catalogue.claim(claim).claim}")
    return lines


def results_facts(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Results as JSON; a claim of several parts has an answer only if all parts were tested."""
    from classwise.papers.tables import PARTLY, claim_verdict

    verdicts = [(result, verdict) for result in results for verdict in result.verdicts]
    found = []
    for result in results:
        facts = result.to_json()
        for plain in facts["verdicts"]:
            summary = claim_verdict(plain["claim"], verdicts)
            plain["answer_of_part"] = plain["answer"] if plain["covers"] else None
            plain["tested"], plain["not_tested"] = list(summary.tested), list(summary.untested)
            if summary.partial:
                plain["answer"] = PARTLY
        found.append(facts)
    return found


def show_result(result: Result) -> None:
    """Print the tables, verdicts and measurements of a result."""
    from classwise.papers.catalogue import find
    from classwise.papers.tables import printed_parts

    typer.echo(f"{result.item} at scale {result.scale}: {result.setting}")
    for table in result.tables:
        typer.echo("")
        show_table(table)
        console.echo(*printed_parts(table, result.item, result.scale).notes())
    lines = ["", *(line for verdict in result.verdicts for line in _verdict_lines(verdict, result.evidence))]
    lines += [line for measurement in result.measurements for line in _measurement_lines(measurement)]
    notes = find(result.item).notes
    own = [note for note in notes if note.items[0] == result.item]
    console.echo(*lines, *_claim_lines([result]), *map(note_line, own))
    if others := [note.id for note in notes if note not in own]:
        console.echo(f"further notes, on several items: {', '.join(others)}; see classwise papers show {result.item}")
    typer.echo("")


def note_line(note: Note) -> str:
    """A note of a paper in one line."""
    return f"note {note.id} ({note.kind}): {note.text}"


def _verdict_lines(verdict: Verdict, evidence: Evidence) -> list[str]:
    from classwise.papers.catalogue import claim
    from classwise.papers.tables import answer_text, estimate_text

    value, span = estimate_text(verdict)
    about = "" if verdict.covers else f": {claim(verdict.claim).claim}"
    lines = [f"{verdict.claim}{',' if verdict.covers else ''} {answer_text(verdict, evidence)}{about}"]
    if verdict.estimand:
        lines.append(f"  {verdict.estimand}: {value} {span}".rstrip())
    return [*lines, *([f"  {verdict.note}"] if verdict.note else [])]


def _measurement_lines(measurement: Measurement) -> list[str]:
    from classwise.papers.catalogue import claim
    from classwise.papers.tables import OPEN, measurement_text

    question = claim(measurement.question)
    kind = OPEN if question.question else "measurement"
    value, span = measurement_text(measurement)
    interval = f" ({span}; 95 % interval for {measurement.population})" if span else ""
    return [
        f"{measurement.question} {kind}: {question.claim}",
        f"  {measurement.quantity}: {value}{interval}",
    ]


def show_table(table: Table) -> None:
    """Print a table with its note."""
    rows = [
        (row.name, *(f"{cell.text} [{cell.span}]" if cell.span else cell.text for cell in row.cells))
        for row in table.rows
    ]
    console.show(table.heads, rows, table.caption)
    if table.note:
        typer.echo(table.note)
