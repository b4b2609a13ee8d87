"""Audit results as terminal tables, or as JSON-compatible data."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from classwise.cli import console
from classwise.reporting import formatting

if TYPE_CHECKING:
    from classwise.auditing.result import Audit
    from classwise.auditing.two_phase import TwoPhase

SUMMARY = ("attack", "n", "overall", "{level}", "worst", "worst class", "worst 20 %", "CV", "MCD", "NRR", "HMW")
OPTIONAL = ("HMW", "NRR", "MCD", "CV", "worst 20 %", "n")
"""The columns of the summary that a narrow terminal leaves out."""

ABSENT = 10
"""Maximal number of classes without images whose names are printed."""


def show_audit(result: Audit) -> None:
    """Print an audit: results per class and per attack, the worst class with its interval, the warnings.

    For an incomplete audit, bounds per class and attack and the numbers of judged images; with ``settle``, estimates.
    """
    if result.two_phase is not None:
        _show_estimates(result, result.two_phase)
        return
    if not result.complete:
        _show_bounds(result)
        return
    table = result.by_class
    from classwise.auditing.outcomes import ALL, CLEAN
    from classwise.reporting.audit_summary import heading
    from classwise.reporting.audit_tables import CUMULATIVE_NOTE

    meta = result.outcomes.meta
    names, level = list(result.names), formatting.level(result.alpha)
    heads = [heading(meta, name) for name in names]
    rows = [
        (
            group,
            int(row["n"]),
            *(console.percent(row[name]) for name in names),
            console.interval(row["low"], row["high"]),
        )
        for group, row in table.iterrows()
    ]
    threat = meta.threat
    title = f"{result.outcomes.meta.model or result.name}: accuracy in percent{f' under {threat}' if threat else ''}"
    single = [head for head, name in zip(heads, names, strict=True) if name not in (CLEAN, ALL)]
    optional = [*single, "n", *heads[: names.index(ALL)]] if ALL in names else ["n"]
    console.show([str(table.index.name), "n", *heads, f"all, {level}"], rows, title, optional=optional)
    if absent := [name for name in result.group_names if name not in table.index]:
        shown = absent if len(absent) <= ABSENT else [*absent[:ABSENT], f"{len(absent) - ABSENT} more"]
        console.echo(f"0 images: {formatting.listed(shown)}")
    console.echo("")
    summary = [_summary_row(heading(meta, str(name)), row) for name, row in result.by_attack.iterrows()]
    console.show([head.format(level=level) for head in SUMMARY], summary, optional=(*OPTIONAL, level))
    if meta.cascade:
        console.echo(CUMULATIVE_NOTE)
    console.echo("")
    console.echo(worst_line(result))
    console.echo(interval_line(result))
    if meta.repeats > 1:
        _show_probabilities(result)
    _show_warnings(result)


def _show_probabilities(result: Audit) -> None:
    """Print the probability of a correct pass per class, of an audit with several passes for each decision."""
    from classwise.reporting.repeats import repeats_note, repeats_table

    table = repeats_table(result)
    rows = [
        (row.name, *(f"{cell.text} [{cell.span}]" if cell.span else cell.text for cell in row.cells))
        for row in table.rows
    ]
    console.echo("")
    console.show(table.heads, rows, table.caption)
    console.echo(repeats_note(result))


def _show_bounds(result: Audit) -> None:
    """Print the bounds of an incomplete audit."""
    from classwise.reporting.incomplete import BOUNDS_NOTE, attack_bounds_table, class_bounds_table

    name = result.outcomes.meta.model or result.name
    for table in (class_bounds_table(result), attack_bounds_table(result)):
        rows = [
            (row.name, *(f"{cell.text} ({cell.span})" if cell.span else cell.text for cell in row.cells))
            for row in table.rows
        ]
        console.show(table.heads, rows, f"{name}, incomplete, under {result.outcomes.meta.threat}: {table.caption}")
        console.echo("")
    console.echo(f"{BOUNDS_NOTE} The worst class is reported once every image is judged.")
    _show_warnings(result)


def _show_estimates(result: Audit, sampled: TwoPhase) -> None:
    """Print AutoAttack's accuracies as estimated from a sample."""
    from classwise.reporting import two_phase

    meta, table = result.outcomes.meta, two_phase.estimates_table(result, sampled)
    rows = [
        (row.name, *(f"{cell.text} [{cell.span}]" if cell.span else cell.text for cell in row.cells))
        for row in table.rows
    ]
    console.show(table.heads, rows, f"{meta.model or result.name}, under {meta.threat}: {table.caption}")
    console.echo("")
    console.echo(two_phase.headline(sampled))
    console.echo(two_phase.worst_line(sampled))
    console.echo(two_phase.new_images_line(sampled))
    console.echo(f"sample: {two_phase.sample_line(sampled)}")
    console.echo(two_phase.meaning(result.alpha))
    _show_warnings(result)


def _show_warnings(result: Audit) -> None:
    for warning in result.warnings:
        console.echo(f"warning ({warning.name}): {warning.sentence}")
    if result.guards is not None and result.guards.sentence:
        console.echo(result.guards.sentence)


def _summary_row(name: object, row: Any) -> tuple[object, ...]:
    shown = console.percent
    return (
        name,
        int(row["n"]),
        shown(row["overall"]),
        console.interval(row["low"], row["high"]),
        shown(row["worst"]),
        row["worst_class"],
        shown(row["worst20"]),
        console.percent_squared(row["cv"]),
        shown(row["mcd"]),
        shown(row["nrr"]),
        shown(row["hmw"]),
    )


def worst_line(result: Audit) -> str:
    """Line on the worst class under all attacks: the interval of the lowest accuracy, ties, and other candidates."""
    from classwise.reporting import sentences
    from classwise.reporting.audit_summary import AuditSummary

    summary, worst = AuditSummary.of(result), result.worst_class()
    equal = [summary.names[label] for label in summary.lowest[1:]]
    others = [name for name in worst.possibly if name not in {worst.name, *equal}]
    clean = sentences.dominant_clean_accuracy(summary)
    unattacked = result.outcomes.meta.not_applicable and not summary.attacked
    start = "no robustness was evaluated; worst class on clean images" if unattacked else "worst class"
    at = f"{console.percent(worst.accuracy)} % {console.interval(worst.low, worst.high)}"
    parts = [f"{start}: {worst.name}, {at} of {formatting.counted(worst.count, 'image')}"]
    parts += [f"tied with {formatting.listed(equal)}"] if equal else []
    of_ties = " of these classes" if equal else ""
    parts += [f"clean accuracy{of_ties} {console.percent(clean)} %"] if clean is not None else []
    parts += [f"other candidates: {formatting.listed(others)}"] if others else []
    return "; ".join(parts)


def interval_line(result: Audit) -> str:
    """Line that names the interval of `worst_line` and its population."""
    return f"in brackets: {formatting.lowest_interval_name(result.alpha, result.group)}, for new images"


def audit_facts(result: Audit) -> dict[str, Any]:
    """Results of an audit as JSON-compatible data, accuracies as fractions; bounds only for an incomplete audit."""
    from classwise.reporting.repeats import repeats_facts

    return {
        "name": result.name,
        "threat": result.outcomes.meta.threat,
        "complete": result.complete,
        "not_applicable": list(result.outcomes.meta.not_applicable),
        "robustness_evaluated": result.outcomes.meta.robustness_evaluated,
        "not_judged": result.outcomes.unjudged,
        "classes": result.by_class.to_dict("index"),
        "summary": result.by_attack.to_dict("index"),
        "worst": _worst_facts(result) if result.complete else None,
        "estimate": None if result.two_phase is None else _estimate_facts(result.two_phase),
        "warnings": [warning._asdict() for warning in result.warnings],
        "guards": None if result.guards is None else dataclasses.asdict(result.guards),
        "repeats": repeats_facts(result),
        "grid": result.outcomes.meta.grid,
        "environment": result.environment,
    }


def _estimate_facts(sampled: TwoPhase) -> dict[str, Any]:
    """AutoAttack's accuracies as estimated from a sample; the fields `low` and `high` are for these images."""
    from classwise.reporting import two_phase

    estimate = sampled.estimate
    return {
        "text": two_phase.headline(sampled),
        "suite": "autoattack",
        "settle": sampled.settle,
        "settled": estimate.settled,
        "confidence": 1 - estimate.alpha,
        "overall": estimate.overall._asdict(),
        "worst": {"class": sampled.worst, **estimate.worst._asdict(), "possibly": list(sampled.possibly)},
        "classes": sampled.by_class.to_dict("index"),
        "survivors": int(estimate.survivors.sum()),
        "sampled": int(estimate.drawn.sum()),
        "passes": sampled.passes,
        "full_audit_passes": sampled.full_audit_passes,
    }


def _worst_facts(result: Audit) -> dict[str, Any]:
    worst = result.worst_class()
    return {
        "class": worst.name,
        "n": worst.count,
        "accuracy": worst.accuracy,
        "low": worst.low,
        "high": worst.high,
        "interval": formatting.lowest_interval_name(result.alpha, result.group),
        "possibly": list(worst.possibly),
    }
