"""The two tables of an audit, per class and per attack: formatted for pages, and as data frames for export."""

from __future__ import annotations

import numpy as np
import pandas as pd

from classwise.auditing.outcomes import ALL, CLEAN
from classwise.reporting import formatting
from classwise.reporting.audit_summary import CUMULATIVE, AuditSummary
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.worst_class import possibly_worst

METRICS_NOTE = (
    "Worst 20\u00a0%: mean over the 20\u00a0% of classes with the lowest accuracy. MCD: maximum class discrepancy, "
    "highest minus lowest class accuracy, in percentage points. CV: class-wise variance of the accuracy, in percent "
    "squared. NRR: harmonic mean of clean and robust accuracy. HMW: harmonic mean of overall and worst-class accuracy."
)
"""Definitions of the metrics in the tables of pages."""
MEANS_NOTE = "Overall: mean over images. Class mean: mean over classes."
CUMULATIVE_NOTE = (
    "The attacks are a cascade, so their counts are cumulative: an image counts as correct under an attack if it "
    "survives this attack and all earlier ones."
)
"""Note of every table and figure that shows the attacks of a cascade."""


def class_table(summary: AuditSummary) -> Table:
    """Accuracy per class in percent, worst class first, with intervals.

    Columns: number of images, then clean, each attack and all attacks.
    """
    intervals = {name: class_intervals(counts, summary.alpha) for name, counts in summary.counts.items()}
    accuracies = {name: counts.accuracy for name, counts in summary.counts.items()}
    rows = []
    for label in summary.order:
        cells = [Cell(formatting.count(summary.under_all.count[label]))]
        for name, accuracy in accuracies.items():
            low, high = (float(ends[label]) for ends in intervals[name])
            cells.append(Cell(formatting.bare_percent(float(accuracy[label])), formatting.span(low, high)))
        rows.append(Row(summary.names[label], cells, weak=label == summary.worst))
    absent = [summary.names[label] for label in np.flatnonzero(~summary.under_all.present)]
    note = f"Without images: {formatting.listed(absent)}." if absent else ""
    caption = f"Accuracy per {summary.singular}, percent [{formatting.level(summary.alpha)} interval]"
    notes = [note, own_intervals_note(summary), CUMULATIVE_NOTE if summary.meta.cascade else ""]
    heads = [summary.kind, "n", *(summary.heading(name) for name in summary.counts)]
    return Table(caption, heads, rows, " ".join(filter(None, notes)))


def own_intervals_note(summary: AuditSummary) -> str:
    """Note of the tables and figures with an interval of each class; empty for a single class."""
    if len(summary.order) == 1:
        return ""
    one = summary.singular
    return f"Each interval is of one {one}, not corrected for the selection of the worst or the best {one}."


def attack_table(summary: AuditSummary) -> Table:
    """Metrics per attack with intervals: overall and worst-class accuracy, and disparity between classes."""
    heads = ["attack", "overall", "class mean", "worst class", "worst", "worst 20 %", "MCD", "CV", "NRR", "HMW"]
    rows, alpha = [], summary.alpha
    for name, counts in summary.counts.items():
        label = metric_intervals.worst_label(counts)
        nrr = Cell(formatting.NONE)
        if name != CLEAN and CLEAN in summary.counts:
            nrr = _share_cell(metric_intervals.clean_and_robust(summary.counts[CLEAN], counts, alpha))
        cells = [
            _share_cell(metric_intervals.overall(counts, alpha)),
            _share_cell(metric_intervals.macro(counts, alpha)),
            Cell(summary.names[label], f"n {formatting.count(int(counts.count[label]))}"),
            _share_cell(metric_intervals.worst(counts, alpha)),
            _share_cell(metric_intervals.worst_fifth(counts, alpha)),
            _share_cell(metric_intervals.discrepancy(counts, alpha)),
            _squared_cell(metric_intervals.variance(counts, alpha)),
            nrr,
            _share_cell(metric_intervals.overall_and_worst(counts, alpha)),
        ]
        rows.append(Row(summary.heading(name), cells, weak=name == ALL))
    images = formatting.counted(int(summary.under_all.count.sum()), "image")
    note = (
        f"On {images}. {MEANS_NOTE} Worst: accuracy of the worst {summary.singular}, with the "
        f"{formatting.lowest_interval_name(alpha, summary.kind)}. {METRICS_NOTE} The intervals of MCD and CV are "
        "derived from simultaneous intervals of all classes. Of those of worst, worst 20\u00a0% and HMW, only the "
        "upper ends are corrected for all classes."
    )
    if summary.meta.cascade:
        note += f" {CUMULATIVE_NOTE}"
    return Table(f"Results per attack, percent [{formatting.level(summary.alpha)} interval]", heads, rows, note)


def class_frame(summary: AuditSummary) -> pd.DataFrame:
    """Accuracy per class as fractions, in label order.

    Columns: ``n``; ``<attack>``, ``<attack>_low`` and ``<attack>_high`` (``<attack>_cumulative`` in a cascade);
    ``possibly_worst``.
    """
    columns: dict[str, object] = {summary.kind: summary.names, "n": summary.under_all.count}
    for name, counts in summary.counts.items():
        low, high = class_intervals(counts, summary.alpha)
        column = f"{name}_{CUMULATIVE}" if summary.cumulative(name) else name
        columns |= {column: counts.accuracy, f"{column}_low": low, f"{column}_high": high}
    columns["possibly_worst"] = possibly_worst(summary.under_all, summary.alpha)
    return pd.DataFrame(columns)


def attack_frame(summary: AuditSummary) -> pd.DataFrame:
    """Metrics per attack as fractions (CV: fraction squared), each with columns ``_low`` and ``_high``."""
    return pd.DataFrame([_attack_row(summary, name) for name in summary.counts])


def _attack_row(summary: AuditSummary, name: str) -> dict[str, object]:
    counts, alpha = summary.counts[name], summary.alpha
    metrics = {
        "overall": metric_intervals.overall(counts, alpha),
        "macro": metric_intervals.macro(counts, alpha),
        "worst": metric_intervals.worst(counts, alpha),
        "worst_20": metric_intervals.worst_fifth(counts, alpha),
        "mcd": metric_intervals.discrepancy(counts, alpha),
        "cv": metric_intervals.variance(counts, alpha),
        "hmw": metric_intervals.overall_and_worst(counts, alpha),
    }
    if name != CLEAN and CLEAN in summary.counts:
        metrics["nrr"] = metric_intervals.clean_and_robust(summary.counts[CLEAN], counts, alpha)
    row: dict[str, object] = {"attack": name}
    if summary.meta.cascade:
        row[CUMULATIVE] = summary.cumulative(name)
    row |= {"n": int(counts.count.sum())}
    row["worst_class"] = summary.names[metric_intervals.worst_label(counts)]
    for metric, (value, low, high) in metrics.items():
        row |= {metric: value, f"{metric}_low": low, f"{metric}_high": high}
    return row


def _share_cell(estimate: Estimate) -> Cell:
    return Cell(formatting.bare_percent(estimate.value), formatting.span(estimate.low, estimate.high))


def _squared_cell(estimate: Estimate) -> Cell:
    return Cell(formatting.squared_percent(estimate.value), formatting.squared_span(estimate.low, estimate.high))
