"""The report of an incomplete audit: bounds and numbers of judged images instead of estimates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from classwise.auditing.outcomes import ALL, CLEAN
from classwise.auditing.result import Audit
from classwise.reporting import formatting
from classwise.reporting.audit_summary import MAX_BARS, heading
from classwise.reporting.audit_tables import MEANS_NOTE, METRICS_NOTE
from classwise.reporting.figures.ranges import range_bars
from classwise.reporting.provenance import settings_of
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import markup
from classwise.stats.bounds import MEASURES, BoundedCounts

BOUNDS_NOTE = (
    "Images that are not judged count as misclassified in the lower bound and as correct in the upper bound. "
    "Bounds are not confidence intervals."
)
METRIC_HEADS = {
    "overall": "overall",
    "macro": "class mean",
    "worst": "worst class",
    "worst20": "worst 20 %",
    "mcd": "MCD",
    "cv": "CV",
    "nrr": "NRR",
    "hmw": "HMW",
}
"""Metrics of the table per attack, with their column heads."""


def incomplete_context(audit: Audit) -> dict[str, Any]:
    """Template context of the page of an incomplete audit."""
    meta, counts = audit.outcomes.meta, audit.bounds(ALL)
    low, high = MEASURES["overall"](counts, None, audit.alpha)
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
            cells.append(Cell(_range(low, high), f"{formatting.count(counts.judged[label])} judged"))
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
    clean = audit.bounds(CLEAN) if CLEAN in audit.names else None
    rows = []
    for name in audit.names:
        counts = audit.bounds(name)
        cells = [Cell(_number(counts.judged.sum())), Cell(_number(counts.unjudged))]
        for measure in METRIC_HEADS:
            bounds = MEASURES[measure](counts, None if name == CLEAN else clean, audit.alpha)
            cells.append(Cell(_squared_range(*bounds) if measure == "cv" else _range(*bounds)))
        rows.append(Row(heading(audit.outcomes.meta, name), cells))
    heads = ["attack", "judged", "not judged", *METRIC_HEADS.values()]
    return Table("Bounds per attack, percent", heads, rows, f"{BOUNDS_NOTE} {MEANS_NOTE} {METRICS_NOTE}")


def _shown(counts: BoundedCounts) -> list[int]:
    """Labels of the classes that have or may have images."""
    return [int(label) for label in np.flatnonzero((counts.count > 0) | (counts.unplaced > 0))]


def _range(low: float, high: float) -> str:
    """Format bounds in percent; one number if they are equal."""
    return formatting.bare_percent(low) if low == high else formatting.span(low, high)


def _squared_range(low: float, high: float) -> str:
    return formatting.squared_percent(low) if low == high else formatting.squared_span(low, high)


def _number(images: float) -> str:
    return "an unknown number" if math.isinf(images) else formatting.count(images)
