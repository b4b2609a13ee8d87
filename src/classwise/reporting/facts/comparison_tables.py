"""Figures and tables of a comparison of methods on the same images."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from classwise.auditing.compare.comparison import Comparison, Pair
from classwise.auditing.outcomes.table import CLEAN
from classwise.reporting import formatting
from classwise.reporting.facts.audit_tables import metric_cell, metrics_note
from classwise.reporting.figures.dots import Value, dot_rows
from classwise.reporting.figures.points import trade_off, unexceeded
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, ExplainedTable, Row, Table
from classwise.stats.intervals import Estimate
from classwise.stats.metrics.averages import overall_estimate
from classwise.stats.registry import Metric, all_metrics, arranged, failures_note
from classwise.stats.selection import Selected

Measure = Literal["overall", "worst"]
MAX_METHODS = len(SERIES)
"""Maximum number of methods with a colour of their own."""
MAX_CLASSES = 40
"""Maximum number of classes in a figure: the worst ones, or those with the largest differences."""


def worst_of(group: str | None, joint: str = " ") -> str:
    """``worst class`` or, with a grouping, ``worst group``; with a hyphen as ``joint`` before a noun."""
    return f"worst{joint}{'class' if group is None else 'group'}"


def measure_dots(comparison: Comparison, *, width: float | None = None) -> Drawing:
    """Overall and worst-class accuracy per method with intervals; a row per method if there are too few colours."""
    title, names, values = f"Accuracy {comparison.conditions}, percent", comparison.names, _values(comparison)
    rows = ["Overall", worst_of(comparison.group).capitalize()]
    if len(names) > MAX_METHODS:
        return dot_rows(title, names, rows, values, alpha=comparison.alpha, width=width)
    return dot_rows(title, rows, names, list(zip(*values, strict=True)), alpha=comparison.alpha, width=width)


def accuracy_points(comparison: Comparison, *, width: float | None = None) -> Drawing | None:
    """Worst-class against overall accuracy, with intervals; None of fewer than three methods or without accuracies."""
    values = _values(comparison)
    if len(values) < 3 or not np.isfinite(values).all():
        return None
    worst = worst_of(comparison.group, "-")
    title = f"{worst.capitalize()} and overall accuracy {comparison.conditions}, percent"
    axes = ("overall accuracy", f"{worst} accuracy")
    return trade_off(title, comparison.names, values, axes, alpha=comparison.alpha, width=width)


def unexceeded_methods(comparison: Comparison) -> list[str]:
    """The methods that no other one exceeds in both overall and worst-class accuracy on these images."""
    methods = methods_of(comparison)
    points = np.array([[row["overall"], row["worst"]] for row in methods.values()]).round(12)
    return [name for name, best in zip(methods, unexceeded(points), strict=True) if best]


def exceeds_all(comparison: Comparison, name: str, measure: Measure) -> bool:
    """Whether a method is significantly above every other one in overall or in worst-class accuracy.

    The intervals of the differences are Bonferroni-corrected for the number of other methods, because the best one was
    selected.
    """
    others = [other for other in comparison.names if other != name]
    alpha = comparison.alpha / max(len(others), 1)
    pairs = (comparison.pair(name, other, alpha) for other in others)
    return all((pair.minima if measure == "worst" else pair.overall).low > 0 for pair in pairs)


def class_dots(comparison: Comparison, *, width: float | None = None) -> Drawing:
    """Accuracy per class and method; the class with the lowest mean over methods comes first."""
    names, images, cells = _class_cells(comparison)
    average = [sum(cell["mean"] for cell in row) for row in cells]
    order = sorted(range(len(names)), key=average.__getitem__)[:MAX_CLASSES]
    values = [[Value(cell["mean"], cell["low"], cell["high"], images[row]) for cell in cells[row]] for row in order]
    names = [names[row] for row in order]
    title = f"Accuracy per {_kind(comparison)} {comparison.conditions}, percent"
    return dot_rows(title, names, comparison.names, values, alpha=comparison.alpha, width=width)


def difference_dots(comparison: Comparison, pair: Pair, *, width: float | None = None) -> Drawing:
    """Difference of two methods per class, largest gain first; of many classes the largest gains and losses."""
    rows = sorted(records(pair.classes), key=lambda row: -row["difference"])
    if len(rows) > MAX_CLASSES:
        rows = rows[: MAX_CLASSES // 2] + rows[-MAX_CLASSES // 2 :]
    values = [[Value(row["difference"], row["low"], row["high"], row["n"])] for row in rows]
    names = [str(row[_kind(comparison)]) for row in rows]
    title = f"{pair.first} minus {pair.second}, percentage points"
    return dot_rows(title, names, [pair.first], values, difference=True, alpha=comparison.alpha, width=width)


def measure_table(comparison: Comparison) -> Table:
    """Metrics per method: the values of `Comparison.table`, with intervals or standard deviations over seeds.

    An overall or worst-class accuracy is in bold if it `exceeds_all`.
    """
    others = arranged("worst20", "mcd", "cv", without=("overall", "worst", "macro"))
    titles = (metric.title for metric in others)
    heads = ["method", "seeds", "n", "clean", "overall", worst_of(comparison.group), "worst", *titles]
    methods = methods_of(comparison)
    best_overall, best_worst = _significantly_best(comparison, "overall"), _significantly_best(comparison, "worst")
    teachers = any(comparison.teachers.values())
    heads[1:1] = ["teacher"] * teachers
    rows = []
    for name in comparison.names:
        row = methods[name]
        cells = [Cell(row["teacher"] or "none")] if teachers else []
        cells += [Cell(str(row["seeds"])), Cell(formatting.count(row["n"]))]
        cells += [_clean_cell(comparison, name), _with_interval(row, "overall")._replace(good=name == best_overall)]
        cells += [Cell(str(row["worst_class"])), _with_interval(row, "worst")._replace(good=name == best_worst)]
        for metric in others:
            estimates = [metric.estimate_in_table(inputs, comparison.alpha) for inputs in comparison.inputs[name]]
            cells.append(_over_seeds(metric, estimates))
        rows.append(Row(name, cells))
    note = (
        f"With a number: its {formatting.level(comparison.alpha)} interval, or after ± the standard deviation over "
        f"seeds. With several seeds: means, of worst the mean of the lowest {_kind(comparison)} of each seed; the "
        f"{worst_of(comparison.group)} is named by the lowest mean (the first one if several are equal)."
    )
    failures = failures_note(inputs for runs in comparison.inputs.values() for inputs in runs)
    note = f"{note} {failures}".rstrip()
    if comparison.selected is not None:
        selected = selected_phrase(comparison.selected, comparison.alpha, comparison.group)
        kind = formatting.singular(comparison.group)
        above = "significantly higher than that of every other method"
        bold = f"No overall or worst-{kind} accuracy is {above}, so none is in bold"
        if best_overall or best_worst:
            bold = f"Bold: an overall or worst-{kind} accuracy that is {above}"
        note = f"{selected}. {bold}. {note}"
    about = partial(_about_columns, comparison)
    return ExplainedTable("Comparison of methods, percent", heads, rows, note, about_columns=about)


def _about_columns(comparison: Comparison, heads: Sequence[str]) -> str:
    """What the columns of `measure_table` are."""
    interval = formatting.lowest_interval_name(comparison.alpha, comparison.group)
    return " ".join(filter(None, (f"Beside worst: {interval}." if "worst" in heads else "", metrics_note(heads))))


def class_table(comparison: Comparison) -> Table:
    """Accuracy per class and method in percent, with intervals."""
    rows = []
    for name, images, cells in zip(*_class_cells(comparison), strict=True):
        rows.append(Row(name, [Cell(formatting.count(images)), *(_mean(cell) for cell in cells)]))
    caption = f"Accuracy per {_kind(comparison)}, percent [{formatting.level(comparison.alpha)} interval]"
    several = any(len(audits) > 1 for audits in comparison.audits.values())
    note = "With several seeds: mean ± standard deviation over seeds." if several else ""
    return Table(caption, [_kind(comparison), "n", *comparison.names], rows, note)


def pair_table(comparison: Comparison, pair: Pair) -> Table:
    """Difference of two methods per class, with intervals and p-values."""
    rows = []
    for row in records(pair.classes):
        cells = [
            Cell(formatting.count(row["n"])),
            Cell(formatting.points(row["difference"], sign=True), formatting.signed_span(row["low"], row["high"])),
            Cell(formatting.probability(row["adjusted"])),
        ]
        rows.append(Row(str(row[_kind(comparison)]), cells))
    heads = [_kind(comparison), "n", "difference", "p"]
    caption = f"{pair.first} minus {pair.second}, percentage points [{formatting.level(comparison.alpha)} interval]"
    kinds = "groups" if comparison.group else "classes"
    note = f"p: {pair.test}; intervals and p-values are simultaneous over the {kinds}; {pair.population}."
    return Table(caption, heads, rows, note)


def methods_of(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Rows of the comparison's table by method."""
    return {row["method"]: row for row in records(comparison.table)}


def selected_phrase(selected: Selected, alpha: float, kind: str | None = None, *, ranked: bool = False) -> str:
    """A phrase on the model that was selected on these images, with intervals that account for the selection.

    Args:
        selected: the model.
        alpha: 1 minus the coverage of the intervals.
        kind: the grouping, as of `Audit.group`; None or ``"class"``: the class.
        ranked: whether it was selected by its rank in a leaderboard; otherwise by its worst-class accuracy.
    """
    noun = formatting.singular(kind)
    worst, overall = (formatting.bracketed(found.low, found.high) for found in (selected.worst, selected.overall))
    have = f"and {formatting.counted(selected.tied, 'other')} have" if selected.tied else "has"
    start = f"{selected.name} {have} the highest accuracy of the worst {noun} among {selected.models} on these images"
    if ranked:
        start = f"{selected.name} is the first of {selected.models} in rank, selected on these images"
    ends = f"{formatting.level(alpha)} intervals that account for its selection"
    return f"{start}: worst {noun} {worst}, overall {overall} ({ends})"


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame as dictionaries, including its index."""
    return [{str(key): value for key, value in row.items()} for row in frame.reset_index().to_dict("records")]


def _class_cells(comparison: Comparison) -> tuple[list[str], list[int], list[list[dict[str, float]]]]:
    """Names and image counts of the classes, and for each class the accuracy, interval and deviation per method."""
    frame, keys = comparison.classes, ("mean", "low", "high", "sd")
    columns = [zip(*(frame[name, key].tolist() for key in keys), strict=True) for name in comparison.names]
    cells = [[dict(zip(keys, cell, strict=True)) for cell in row] for row in zip(*columns, strict=True)]
    return [str(name) for name in frame.index], frame["", "n"].tolist(), cells


def _significantly_best(comparison: Comparison, measure: Measure) -> str | None:
    """The method that is significantly above every other one; None if there is none, or no other method."""
    methods = methods_of(comparison)
    best = max(methods, key=lambda name: methods[name][measure])
    return best if len(methods) > 1 and exceeds_all(comparison, best, measure) else None


def _values(comparison: Comparison) -> list[tuple[Value, Value]]:
    """Overall and worst-class accuracy of each method, with the images of all classes and of the worst one."""
    found = []
    for name, row in methods_of(comparison).items():
        count = comparison.counts[name][0].count
        of_worst = int(count[comparison.group_names.index(comparison.lowest_classes[name][0])])
        overall, worst = (
            Value(row[side], row[f"{side}_low"], row[f"{side}_high"], images)
            for side, images in (("overall", int(count.sum())), ("worst", of_worst))
        )
        found.append((overall, worst))
    return found


def _mean(cell: Mapping[Any, Any]) -> Cell:
    """Mean accuracy of a class with its standard deviation over seeds, and its interval."""
    return Cell(formatting.bare_percent(cell["mean"]) + _spread(cell["sd"]), formatting.span(cell["low"], cell["high"]))


def _with_interval(row: Mapping[str, Any], name: str) -> Cell:
    """A measure with the comparison's interval, and its standard deviation over seeds."""
    text = formatting.bare_percent(row[name]) + _spread(row[f"{name}_sd"])
    return Cell(text, formatting.span(row[f"{name}_low"], row[f"{name}_high"]))


def _spread(deviation: float) -> str:
    return "" if math.isnan(deviation) else f" ± {formatting.points(deviation)}"


def _clean_cell(comparison: Comparison, name: str) -> Cell:
    """The overall accuracy without an attack, over the seeds."""
    audits = comparison.audits[name]
    if any(CLEAN not in audit.names for audit in audits):
        return Cell(formatting.NONE)
    counts = [audit.outcomes.counts(CLEAN) for audit in audits]
    return _over_seeds(
        all_metrics()["overall"], [overall_estimate(class_counts, comparison.alpha) for class_counts in counts]
    )


def _over_seeds(metric: Metric, estimates: list[Estimate]) -> Cell:
    """A metric with its interval for one seed, or its mean and standard deviation for several."""
    if len(estimates) == 1:
        return metric_cell(metric, estimates[0])
    values = [estimate.value for estimate in estimates]
    if any(map(math.isnan, values)) or not metric.mean_over_seeds:
        return Cell(formatting.NONE)
    mean, deviation = (formatting.in_unit(of(values), metric.unit) for of in (statistics.mean, statistics.stdev))
    return Cell(mean, f"± {deviation}")


def _kind(comparison: Comparison) -> str:
    return comparison.group or "class"
