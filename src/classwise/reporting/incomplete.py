"""The report of an incomplete audit: bounds and counts of images that are not judged, and no estimates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from classwise.auditing.outcomes import ALL, CLEAN
from classwise.auditing.result import Audit
from classwise.reporting import formatting
from classwise.reporting.figures.ranges import range_bars
from classwise.reporting.findings import MOST_BARS, heading
from classwise.reporting.provenance import settings_of
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import markup
from classwise.stats.bounds import MEASURES, BoundedCounts

MEANING = (
    "The lower bound counts every image that is not judged as misclassified, the upper bound as correct. "
    "Bounds are not confidence intervals."
)
COLUMNS = {
    "overall": "overall",
    "macro": "class mean",
    "worst": "lowest class",
    "worst20": "worst 20 %",
    "mcd": "MCD",
    "cv": "CV",
    "nrr": "NRR",
    "hmw": "HMW",
}
"""The measures of the table by attack, and their heads."""


def incomplete_context(audit: Audit) -> dict[str, Any]:
    """Everything that the template of an incomplete audit's page shows."""
    meta, counts = audit.outcomes.meta, audit.bounds(ALL)
    low, high = MEASURES["overall"](counts, None, audit.alpha)
    title = f"Incomplete: {audit.outcomes.unfinished} images are not judged by every attack"
    where = " ".join(filter(None, (meta.data, meta.split)))
    kind = audit.group or "class"
    return {
        "title": f"{title}: {meta.model or audit.name}",
        "heading": title,
        "over": [part for part in (f"classwise audit {audit.name}", meta.model, where, meta.threat) if part],
        "lead": f"The accuracy under all attacks is between {formatting.percent(low)} and {formatting.percent(high)}.",
        "meaning": MEANING,
        "advice": (
            f"Which {kind} is the weakest depends on the images that are not judged, so none is named. Repeat the "
            "command with --resume to continue the audit."
        ),
        "population": "Bounds hold however the images that are not judged turn out.",
        "figure": markup(bounds_drawing(audit)),
        "hidden": max(0, len(_shown(counts)) - MOST_BARS),
        "warnings": [warning for warning in audit.warnings if warning.name != "incomplete"],
        "attacks": attack_bounds_table(audit),
        "classes": class_bounds_table(audit),
        "kind": kind,
        "settings": settings_of(audit),
    }


def bounds_drawing(audit: Audit) -> Drawing:
    """The bounds of every class under all attacks; of many classes those with the lowest upper bounds."""
    counts = audit.bounds(ALL)
    low, high = counts.accuracy
    shown = sorted(_shown(counts), key=lambda label: (high[label], low[label]))[:MOST_BARS]
    names = [audit.group_names[label] for label in shown]
    title = "Bounds of the accuracy under all attacks, percent"
    return range_bars(title, names, [float(low[label]) for label in shown], [float(high[label]) for label in shown])


def class_bounds_table(audit: Audit) -> Table:
    """A row per class: its images, then under each attack the bounds and how many images are judged."""
    found = {name: audit.bounds(name) for name in audit.names}
    ends = {name: counts.accuracy for name, counts in found.items()}
    rows = []
    for label in _shown(found[ALL]):
        cells = [Cell(formatting.count(found[ALL].count[label]))]
        for name, counts in found.items():
            low, high = (float(values[label]) for values in ends[name])
            cells.append(Cell(_range(low, high), f"{formatting.count(counts.judged[label])} judged"))
        rows.append(Row(audit.group_names[label], cells))
    kind = audit.group or "class"
    note = ""
    if unplaced := found[ALL].unplaced:
        note = f"The {kind} of {_number(unplaced)} images that are not judged is not known."
    return Table(
        f"Bounds of the accuracy of each {kind}, percent",
        [kind, "n", *(heading(audit.outcomes.meta, name) for name in found)],
        rows,
        note,
    )


def attack_bounds_table(audit: Audit) -> Table:
    """A row per attack: how many images are judged and are not, and the bounds of every measure."""
    clean = audit.bounds(CLEAN) if CLEAN in audit.names else None
    rows = []
    for name in audit.names:
        counts = audit.bounds(name)
        cells = [Cell(_number(counts.judged.sum())), Cell(_number(counts.unjudged))]
        for measure in COLUMNS:
            found = MEASURES[measure](counts, None if name == CLEAN else clean, audit.alpha)
            cells.append(Cell(_squared_range(*found) if measure == "cv" else _range(*found)))
        rows.append(Row(heading(audit.outcomes.meta, name), cells))
    note = (
        f"{MEANING} Class mean: over classes; worst 20 %: mean of the lowest fifth of the classes; MCD: highest minus "
        "lowest class, in points; CV: variance of the class accuracies, in percent squared; NRR: harmonic mean of "
        "clean and robust; HMW: of overall and worst."
    )
    return Table(
        "Attack by attack, bounds in percent", ["attack", "judged", "not judged", *COLUMNS.values()], rows, note
    )


def _shown(counts: BoundedCounts) -> list[int]:
    """The classes that have or may have images."""
    return [int(label) for label in np.flatnonzero((counts.count > 0) | (counts.unplaced > 0))]


def _range(low: float, high: float) -> str:
    """Bounds in percent; one number where they are equal."""
    return formatting.bare_percent(low) if low == high else formatting.span(low, high)


def _squared_range(low: float, high: float) -> str:
    return formatting.squared_percent(low) if low == high else formatting.squared_span(low, high)


def _number(images: float) -> str:
    return "an unknown number" if math.isinf(images) else formatting.count(images)
