"""The two tables of an audit: class by class, and attack by attack; for people, and as numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from classwise.auditing.outcomes import ALL, CLEAN
from classwise.reporting import formatting
from classwise.reporting.findings import CUMULATIVE, Findings
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.worst_class import possibly_worst

CUMULATIVE_NOTE = (
    "The attacks are a cascade, so their counts are cumulative: an image counts as correct under an attack if it "
    "survives this attack and all earlier ones."
)
"""What is said beside every table and figure that shows the attacks of a cascade."""


def class_table(findings: Findings) -> Table:
    """A row per class, the lowest first: images, then clean, each attack and all with its interval, in percent."""
    spans = {name: class_intervals(counts, findings.alpha) for name, counts in findings.counts.items()}
    accuracies = {name: counts.accuracy for name, counts in findings.counts.items()}
    rows = []
    for label in findings.order:
        cells = [Cell(formatting.count(findings.verdict.count[label]))]
        for name, accuracy in accuracies.items():
            low, high = (float(ends[label]) for ends in spans[name])
            cells.append(Cell(formatting.bare_percent(float(accuracy[label])), formatting.span(low, high)))
        rows.append(Row(findings.names[label], cells, weak=label == findings.worst))
    absent = [findings.names[label] for label in np.flatnonzero(~findings.verdict.present)]
    note = f"Without images: {formatting.listed(absent)}." if absent else ""
    caption = f"Accuracy of each {findings.singular}, percent [{formatting.level(findings.alpha)} interval]"
    notes = [note, CUMULATIVE_NOTE if findings.meta.cascade else ""]
    heads = [findings.kind, "n", *(findings.heading(name) for name in findings.counts)]
    return Table(caption, heads, rows, " ".join(filter(None, notes)))


def attack_table(findings: Findings) -> Table:
    """A row per attack: overall, the worst class, and how unequal the classes are, each with its interval."""
    heads = ["attack", "overall", "class mean", "weakest", "", "worst 20 %", "MCD", "CV", "NRR", "HMW"]
    rows, alpha = [], findings.alpha
    for name, counts in findings.counts.items():
        label = metric_intervals.worst_label(counts)
        nrr = Cell(formatting.NONE)
        if name != CLEAN and CLEAN in findings.counts:
            nrr = _share(metric_intervals.clean_and_robust(findings.counts[CLEAN], counts, alpha))
        cells = [
            _share(metric_intervals.overall(counts, alpha)),
            _share(metric_intervals.macro(counts, alpha)),
            Cell(findings.names[label], f"n {formatting.count(int(counts.count[label]))}"),
            _share(findings.reading(label, name)),
            _share(metric_intervals.worst_fifth(counts, alpha)),
            _share(metric_intervals.discrepancy(counts, alpha)),
            _squared(metric_intervals.variance(counts, alpha)),
            nrr,
            _share(metric_intervals.overall_and_worst(counts, alpha)),
        ]
        rows.append(Row(findings.heading(name), cells, weak=name == ALL))
    images = formatting.counted(int(findings.verdict.count.sum()), "image")
    note = (
        f"On {images}. Overall: over images; class mean: over classes; "
        "worst 20 %: mean of the lowest fifth of the classes; MCD: highest minus lowest class, in points; CV: variance "
        "of the class accuracies, in percent squared; NRR: harmonic mean of clean and robust; HMW: of overall and "
        "worst. The intervals of worst 20 %, MCD, CV and HMW follow from intervals that cover all classes at once."
    )
    if findings.meta.cascade:
        note += f" {CUMULATIVE_NOTE}"
    return Table(f"Attack by attack, percent [{formatting.level(findings.alpha)} interval]", heads, rows, note)


def class_frame(findings: Findings) -> pd.DataFrame:
    """A row per class in its own order, fractions: n, each attack with the ends of its interval, who may be worst.

    The columns of the attacks of a cascade are called ``<attack>_cumulative``.
    """
    columns: dict[str, object] = {findings.kind: findings.names, "n": findings.verdict.count}
    for name, counts in findings.counts.items():
        low, high = class_intervals(counts, findings.alpha)
        column = f"{name}_{CUMULATIVE}" if findings.cumulative(name) else name
        columns |= {column: counts.accuracy, f"{column}_low": low, f"{column}_high": high}
    columns["possibly_worst"] = possibly_worst(findings.verdict, findings.alpha)
    return pd.DataFrame(columns)


def attack_frame(findings: Findings) -> pd.DataFrame:
    """A row per attack, fractions (CV: fraction squared), each with the ends of its interval."""
    return pd.DataFrame([_attack_row(findings, name) for name in findings.counts])


def _attack_row(findings: Findings, name: str) -> dict[str, object]:
    counts, alpha = findings.counts[name], findings.alpha
    metrics = {
        "overall": metric_intervals.overall(counts, alpha),
        "macro": metric_intervals.macro(counts, alpha),
        "worst": metric_intervals.worst(counts, alpha),
        "worst_20": metric_intervals.worst_fifth(counts, alpha),
        "mcd": metric_intervals.discrepancy(counts, alpha),
        "cv": metric_intervals.variance(counts, alpha),
        "hmw": metric_intervals.overall_and_worst(counts, alpha),
    }
    if name != CLEAN and CLEAN in findings.counts:
        metrics["nrr"] = metric_intervals.clean_and_robust(findings.counts[CLEAN], counts, alpha)
    row: dict[str, object] = {"attack": name}
    if findings.meta.cascade:
        row[CUMULATIVE] = findings.cumulative(name)
    row |= {"n": int(counts.count.sum())}
    row["worst_class"] = findings.names[metric_intervals.worst_label(counts)]
    for metric, (value, low, high) in metrics.items():
        row |= {metric: value, f"{metric}_low": low, f"{metric}_high": high}
    return row


def _share(estimate: Estimate) -> Cell:
    return Cell(formatting.bare_percent(estimate.value), formatting.span(estimate.low, estimate.high))


def _squared(estimate: Estimate) -> Cell:
    return Cell(formatting.squared_percent(estimate.value), formatting.squared_span(estimate.low, estimate.high))
