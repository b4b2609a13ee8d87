"""The report of an incomplete audit: bounds and numbers of judged images instead of estimates."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from classwise.auditing.outcomes.table import ALL
from classwise.auditing.run.result import Audit
from classwise.reporting import formatting
from classwise.reporting.audit_summary import MAX_BARS, heading, inputs_of
from classwise.reporting.audit_tables import PAGE_ORDER, means_note, metrics_note
from classwise.reporting.figures.ranges import range_bars
from classwise.reporting.provenance import settings_of
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import markup
from classwise.stats import Unit
from classwise.stats.bounds import BoundedCounts, Bounds, overall
from classwise.stats.metric import arranged

BOUNDS_NOTE = (
    "Images that are not judged count as misclassified in the lower bound and as correct in the upper bound. "
    "Bounds are not confidence intervals."
)


def incomplete_context(audit: Audit) -> dict[str, Any]:
    """Template context of the page of an incomplete audit."""
    meta, counts = audit.outcomes.meta, audit.bounds(ALL)
    low, high = map(float, overall(counts))
    title = f"Incomplete audit: {audit.outcomes.unfinished} images are not judged under every attack"
    where = " ".join(filter(None, (meta.data, meta.split)))
    kind = audit.group or "class"
    return {
        "title": f"{title}: {meta.model or audit.name}",
        "heading": title,
        "over": [part for part in (f"classwise audit {audit.name}", meta.model, where, meta.threat) if part],
        "lead": f"The accuracy under all attacks is between {formatting.percent(low)} and {formatting.percent(high)}.",
        "meaning": BOUNDS_NOTE,
        "advice": (
            f"The worst {kind} depends on the images that are not judged, so it is not reported. Repeat the command "
            "with --resume to continue the audit."
        ),
        "population": "Bounds are valid for every possible outcome of the images that are not judged.",
        "figure": markup(bounds_drawing(audit), bounds_drawing(audit, narrow=True)),
        "caption": "The figure shows the rows with the lowest upper bounds." if len(_shown(counts)) > MAX_BARS else "",
        "warnings": [warning for warning in audit.warnings if warning.name != "incomplete"],
        "guards_not_run": "" if audit.guards is None else audit.guards.sentence,
        "attacks": attack_bounds_table(audit),
        "classes": class_bounds_table(audit),
        "kind": kind,
        "settings": settings_of(audit),
    }


def bounds_drawing(audit: Audit, *, narrow: bool = False) -> Drawing:
    """Bounds of the class accuracies under all attacks; at most the `MAX_BARS` classes with the lowest upper bounds."""
    counts = audit.bounds(ALL)
    low, high = counts.accuracy
    shown = sorted(_shown(counts), key=lambda label: (high[label], low[label]))[:MAX_BARS]
    names = [audit.group_names[label] for label in shown]
    title = "Bounds of the accuracy under all attacks, percent"
    ends = ([float(limits[label]) for label in shown] for limits in (low, high))
    return range_bars(title, names, *ends, narrow=narrow)


def class_bounds_table(audit: Audit) -> Table:
    """Bounds per class: number of images, then under each attack the bounds and the number of judged images."""
    by_attack = {name: audit.bounds(name) for name in audit.names}
    limits = {name: counts.accuracy for name, counts in by_attack.items()}
    rows = []
    for label in _shown(by_attack[ALL]):
        cells = [Cell(formatting.count(by_attack[ALL].count[label]))]
        for name, counts in by_attack.items():
            low, high = (float(values[label]) for values in limits[name])
            cells.append(Cell(_range(Bounds(low, high)), f"{formatting.count(counts.judged[label])} judged"))
        rows.append(Row(audit.group_names[label], cells))
    kind = audit.group or "class"
    note = ""
    if unplaced := by_attack[ALL].unplaced:
        note = f"The {kind} of {_number(unplaced)} images that are not judged is unknown."
    return Table(
        f"Bounds of the accuracy per {kind}, percent",
        [kind, "n", *(heading(audit.outcomes.meta, name) for name in by_attack)],
        rows,
        note,
    )


def attack_bounds_table(audit: Audit) -> Table:
    """Bounds of every metric per attack, with the numbers of images that are and are not judged."""
    shown, rows = arranged(*PAGE_ORDER), []
    for name in audit.names:
        inputs = inputs_of(audit, name)
        cells = [Cell(_number(inputs.counts.judged.sum())), Cell(_number(inputs.counts.unjudged))]
        cells += [Cell(_range(metric.possible(inputs), metric.unit)) for metric in shown]
        rows.append(Row(heading(audit.outcomes.meta, name), cells))
    heads = ["attack", "judged", "not judged", *(metric.title for metric in shown)]
    return Table("Bounds per attack, percent", heads, rows, f"{BOUNDS_NOTE} {means_note()} {metrics_note()}")


def _shown(counts: BoundedCounts) -> list[int]:
    """Labels of the classes that have or may have images."""
    return [int(label) for label in np.flatnonzero((counts.count > 0) | (counts.unplaced > 0))]


def _range(bounds: Bounds[Fraction] | Bounds[float], unit: Unit = "fraction") -> str:
    """Format bounds in their unit; one number if they are equal."""
    low, high = map(float, bounds)
    return formatting.in_unit(low, unit) if low == high else formatting.span_in_unit(low, high, unit)


def _number(images: float) -> str:
    return "an unknown number" if math.isinf(images) else formatting.count(images)
