"""The two tables of an audit, per class and per attack: formatted for pages, and as data frames for export."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.outcomes.table import ALL
from classwise.auditing.run.result import Audit
from classwise.reporting import formatting
from classwise.reporting.facts.audit_summary import CUMULATIVE, AuditSummary, is_cumulative
from classwise.reporting.tables import Cell, ExplainedTable, Row, Table, share_cell
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.metrics.lowest import worst_class
from classwise.stats.registry import Metric, all_metrics, arranged, failures_note
from classwise.stats.worst_class import possibly_worst

PAGE_ORDER = ("overall", "macro", "worst", "worst20", "mcd", "cv")
"""The first metrics in the tables of pages."""
CUMULATIVE_NOTE = (
    "The attacks are a cascade, so their counts are cumulative: an image counts as correct under an attack if it "
    "survives this attack and all earlier ones."
)
"""Note of every table and figure that shows the attacks of a cascade."""


def metrics_note(heads: Collection[str]) -> str:
    """Definitions of the metrics among the heads of a table, but for the worst class."""
    shown = arranged("overall", "macro", "worst20", "mcd", "cv", without=("worst",))
    return definitions(metric for metric in shown if metric.title in heads)


def legend(heads: Collection[str]) -> str:
    """Definitions of the metrics among the heads of a table, in one line; without those that are plain words."""
    metrics = arranged(without=("overall", "macro", "worst", "worst20"))
    return "; ".join(f"{metric.title}: {metric.about}" for metric in metrics if metric.title in heads)


def definitions(metrics: Iterable[Metric]) -> str:
    """Title and definition of each metric, a sentence each."""
    sentences = (f"{metric.title[:1].upper()}{metric.title[1:]}: {metric.about}." for metric in metrics)
    return " ".join(sentences).replace(" %", "\u00a0%")


def metric_cell(metric: Metric, estimate: Estimate) -> Cell:
    """A metric with its interval below it, in its unit; a dash where it is unknown."""
    if math.isnan(estimate.value):
        return Cell(formatting.NONE)
    ends = formatting.span_in_unit(estimate.low, estimate.high, metric.unit)
    return Cell(formatting.in_unit(estimate.value, metric.unit), "no interval" if ends == formatting.NONE else ends)


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
            cells.append(share_cell(float(accuracy[label]), *(float(ends[label]) for ends in intervals[name])))
        rows.append(Row(summary.names[label], cells, weak=[label] == summary.lowest))
    absent = [summary.names[label] for label in np.flatnonzero(~summary.under_all.present)]
    note = f"Without images: {formatting.listed(absent)}." if absent else ""
    caption = f"Accuracy per {summary.singular}, percent [{formatting.level(summary.alpha)} interval]"
    notes = [note, bold_note(summary), own_intervals_note(summary), CUMULATIVE_NOTE if summary.meta.cascade else ""]
    heads = [summary.kind, "n", *(summary.heading(name) for name in summary.counts)]
    return Table(caption, heads, rows, " ".join(filter(None, notes)))


def ties_note(every: Iterable[ClassCounts], kind: str | None) -> str:
    """Which class is the worst one under an attack with several classes of the lowest accuracy; empty without one.

    Args:
        every: the counts under each attack.
        kind: the grouping; None: the class.
    """
    tied = any((counts.accuracy == worst_class(counts.accuracy).accuracy).sum() > 1 for counts in every)
    return f"Worst {formatting.singular(kind)}: of equally low {formatting.plural(kind)} the first." if tied else ""


def bold_note(summary: AuditSummary) -> str:
    """Note on the row in bold of a table with a row for each class; empty for a single class."""
    if len(summary.order) == 1:
        return ""
    under = "under all attacks" if summary.attacked else "on clean images"
    if len(summary.lowest) == 1:
        return f"Bold: the {summary.singular} with the lowest accuracy {under}."
    tied = f"{formatting.count(len(summary.lowest))} {summary.plural}"
    return f"No {summary.singular} is in bold, since {tied} tie for the lowest accuracy {under}."


def own_intervals_note(summary: AuditSummary) -> str:
    """Note of the tables and figures with an interval of each class; empty for a single class."""
    if len(summary.order) == 1:
        return ""
    one = summary.singular
    return f"Each interval is of one {one}, not corrected for the selection of the worst or the best {one}."


def attack_table(summary: AuditSummary) -> Table:
    """Metrics per attack with intervals: overall and worst-class accuracy, and disparity between classes."""
    alpha, shown, rows = summary.alpha, arranged(*PAGE_ORDER), []
    heads = ["attack", *(metric.title for metric in shown)]
    place = heads.index("worst class")
    heads.insert(place + 1, "worst")
    for name, inputs in summary.inputs.items():
        label = worst_class(inputs.counts.low.accuracy).label
        cells = [metric_cell(metric, metric.estimate_in_table(inputs, alpha)) for metric in shown]
        images = formatting.count(int(inputs.counts.count[label]))
        cells.insert(place - 1, Cell(summary.names[label], f"n {images}"))
        rows.append(Row(summary.heading(name), cells, weak=name == ALL and summary.attacked))
    images = formatting.counted(int(summary.under_all.count.sum()), "image")
    bold = "Bold: under all attacks together." if summary.attacked else ""
    cumulative = CUMULATIVE_NOTE if summary.meta.cascade else ""
    notes = [f"On {images}.", bold, ties_note(summary.counts.values(), summary.kind), cumulative]
    text = " ".join(filter(None, [*notes, failures_note(summary.inputs.values())]))
    caption = f"Results per attack, percent [{formatting.level(summary.alpha)} interval]"
    return ExplainedTable(caption, heads, rows, text, about_columns=partial(_about_columns, summary))


def _about_columns(summary: AuditSummary, heads: Sequence[str]) -> str:
    """What the metrics of an audit and their intervals are."""
    sentences = [metrics_note(heads)]
    if "worst" in heads:
        interval = formatting.lowest_interval_name(summary.alpha, summary.kind)
        sentences.append(f"Worst: accuracy of the worst {summary.singular}, with the {interval}.")
    titles = {name: metric.title for name, metric in all_metrics().items()}
    for names, derived in (
        (("mcd", "cv"), "derived from simultaneous intervals of all classes"),
        (("asymmetry",), "derived from simultaneous intervals of all pairs of classes"),
        (("worst", "worst20", "hmw"), "corrected for all classes at the upper end only"),
    ):
        shown = [titles[name] for name in names if titles[name] in heads]
        if shown:
            subject = "interval of {} is" if len(shown) == 1 else "intervals of {} are"
            sentences.append(f"The {subject.format(formatting.listed(shown))} {derived}.")
    return " ".join(filter(None, sentences))


def class_frame(summary: AuditSummary) -> pd.DataFrame:
    """Accuracy per class as fractions, in label order.

    Columns: ``n``; ``<attack>``, ``<attack>_low`` and ``<attack>_high`` (``<attack>_cumulative`` in a cascade);
    ``possibly_worst``.
    """
    columns: dict[str, object] = {summary.kind: summary.names, "n": summary.under_all.count}
    for name, counts in summary.counts.items():
        low, high = class_intervals(counts, summary.alpha)
        column = f"{name}_{CUMULATIVE}" if is_cumulative(summary.meta, name) else name
        columns |= {column: counts.accuracy, f"{column}_low": low, f"{column}_high": high}
    columns["possibly_worst"] = possibly_worst(summary.under_all, summary.alpha)
    return pd.DataFrame(columns)


def image_frame(audit: Audit) -> pd.DataFrame:
    """A row for each image of a complete audit, in the order of the indices.

    Columns: ``index``; ``name``, empty without one; ``class``; a column for each grouping; and for each of the names
    of the audit ``<name>``, 1 if the image is correct and 0 if not, and ``<name>_predicted``, the predicted class,
    empty where the logits give none.
    """
    outcomes = audit.outcomes
    classes = np.array([*outcomes.class_names, None], dtype=object)  # the last one for `NO_PREDICTION`
    columns: dict[str, Any] = {"index": outcomes.index, "name": outcomes.image_names, "class": classes[outcomes.labels]}
    for group in outcomes.meta.groups:
        names, ids = outcomes.grouping(group)
        columns[group] = np.array(names, dtype=object)[ids]
    for name in outcomes.names:
        predicted = outcomes.predicted(name)
        columns[name] = predicted["correct"].to_numpy().astype(np.int64)
        columns[f"{name}_predicted"] = classes[predicted["prediction"].to_numpy()]
    return pd.DataFrame(columns)


def attack_frame(summary: AuditSummary) -> pd.DataFrame:
    """Metrics per attack as fractions (``cv``: fraction squared), each with columns ``_low`` and ``_high``."""
    return pd.DataFrame([_attack_row(summary, name) for name in summary.counts])


def _attack_row(summary: AuditSummary, name: str) -> dict[str, object]:
    counts, inputs = summary.counts[name], summary.inputs[name]
    row: dict[str, object] = {"attack": name}
    if summary.meta.cascade:
        row[CUMULATIVE] = is_cumulative(summary.meta, name)
    row |= {"n": int(counts.count.sum())}
    row["worst_class"] = summary.names[worst_class(counts.accuracy).label]
    for metric in arranged(*PAGE_ORDER, "hmw"):
        value, low, high = metric.estimate_in_table(inputs, summary.alpha)
        column = "worst_20" if metric.name == "worst20" else metric.name
        if not math.isnan(value):
            row |= {column: value, f"{column}_low": low, f"{column}_high": high}
    return row
