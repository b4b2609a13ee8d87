"""Tables of measured accuracies next to the printed ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from classwise.papers.claims import ALPHA, Test
from classwise.papers.interval_estimators import IntervalEstimator
from classwise.papers.printed import row_name
from classwise.reporting import formatting
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate, class_intervals

Key = tuple[str, ...]
"""The parts of a row name, such as ("Madry", "PGD")."""


def summary_table(
    caption: str, ours: Mapping[Key, ClassCounts], printed: Mapping[Key, Mapping[str, Any]], names: Sequence[str]
) -> Table:
    """Table of total, CV, MCD, lowest and highest class, with 95 % intervals and the printed numbers.

    All classes that tie for the lowest or the highest accuracy are listed.

    Args:
        caption: caption of the table.
        ours: measured counts by row.
        printed: printed rows by the same keys; rows may be missing.
        names: class names.
    """
    rows = []
    for key, counts in ours.items():
        reported = printed.get(key, {})
        classes = np.array(reported["per_class"], dtype=np.float64) if "per_class" in reported else None
        overall, cv, mcd = (
            metric_intervals.overall(counts),
            metric_intervals.variance(counts),
            metric_intervals.discrepancy(counts),
        )
        low, high = float(np.nanmin(counts.accuracy)), float(np.nanmax(counts.accuracy))
        cells = [
            Cell(formatting.bare_percent(overall.value), formatting.span(overall.low, overall.high)),
            Cell(_printed(reported.get("tot"))),
            Cell(formatting.squared_percent(cv.value), formatting.squared_span(cv.low, cv.high)),
            Cell(_printed(reported.get("cv"))),
            Cell(formatting.bare_percent(mcd.value), formatting.span(mcd.low, mcd.high)),
            Cell(_printed(reported.get("mcd"))),
            Cell(
                formatting.listed([names[label] for label in _at(counts.accuracy, low)]), formatting.bare_percent(low)
            ),
            Cell(formatting.NONE) if classes is None else _printed_classes(classes, classes.min()),
            Cell(
                formatting.listed([names[label] for label in _at(counts.accuracy, high)]), formatting.bare_percent(high)
            ),
            Cell(formatting.NONE) if classes is None else _printed_classes(classes, classes.max()),
        ]
        rows.append(Row(", ".join(key), cells))
    kinds = ("total", "CV", "MCD", "lowest", "highest")
    heads = [head for kind in kinds for head in (kind, "printed")]
    note = (
        "Small print: 95 % confidence intervals for new images of the same classes with the models fixed; under "
        "a class "
        "name, its accuracy. Printed classes are CIFAR-10 labels, from 0: 1 is automobile, 3 is cat."
    )
    return Table(caption, ("row", *heads), rows, note)


def class_table(caption: str, ours: Mapping[Key, ClassCounts], names: Sequence[str]) -> Table:
    """Table of class accuracies with 95 % intervals: a row for each key, a column for each class."""
    rows = []
    for key, counts in ours.items():
        low, high = class_intervals(counts)
        accuracy = counts.accuracy
        cells = [
            Cell(formatting.bare_percent(float(accuracy[c])), formatting.span(float(low[c]), float(high[c])))
            for c in range(len(names))
        ]
        rows.append(Row(", ".join(key), cells))
    note = "Small print: 95 % confidence intervals for new images of the class with the model fixed."
    return Table(caption, ("row", *names), rows, note)


def estimate_cell(
    one: Estimate, scale: float = 100, digits: int = 1, *, sign: str = "", tests: Sequence[Test] = ()
) -> Cell:
    """Cell of an estimate with its interval in small print, times ``scale``; a dash for NaN.

    An estimate has one interval: if a claim tests it, the small print names the claim, whose verdict has the interval.

    Args:
        one: estimate with its 95 % interval.
        scale: factor of the numbers.
        digits: number of decimals.
        sign: ``+`` to print the sign of positive numbers.
        tests: tests of the item.
    """
    if math.isnan(one.value):
        return Cell(formatting.NONE)
    value, low, high = (f"{scale * end:{sign}z.{digits}f}" for end in one)
    for test in tests:
        values = [part(ALPHA).value for part in test.estimators]
        if any(math.isclose(scale * one.value, tested, rel_tol=1e-9, abs_tol=1e-9) for tested in values):
            return Cell(value, f"tested by {test.claim.partition('/')[2]}")
    known = not (math.isnan(one.low) or math.isnan(one.high))
    return Cell(value, f"{low} to {high}" if known else "")


def elsewhere(claim: str, *estimators: IntervalEstimator) -> Test:
    """A claim that another item tests by these estimators, for `estimate_cell`."""
    return Test(claim=claim, estimand="tested by another item", estimators=estimators)


def skipped_table(absent: Mapping[str, str]) -> list[Table]:
    """A table of skipped data sets with the reasons, in a list; an empty list if none was skipped."""
    rows = [Row(data, [Cell(reason)]) for data, reason in absent.items()]
    return [Table("Skipped data sets", ("data set", "reason"), rows)] if rows else []


def by_name(rows: Sequence[Mapping[str, Any]], *keys: str) -> dict[Key, Mapping[str, Any]]:
    """Index printed rows by the values of some keys."""
    return {tuple(str(row[key]) for key in keys): row for row in rows}


def names_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of printed rows."""
    return [row_name(row) for row in rows]


def _at(accuracies: FloatArray, value: float) -> list[int]:
    """Labels of the classes with exactly this accuracy."""
    return [int(label) for label in np.flatnonzero(accuracies == value)]


def _printed_classes(printed: FloatArray, value: float) -> Cell:
    """Cell of the labels of the classes with a printed accuracy, and that accuracy in small print."""
    labels = [str(label) for label in _at(printed, value)]
    return Cell(f"{'class' if len(labels) == 1 else 'classes'} {formatting.listed(labels)}", f"{value:g}")


def _printed(value: float | None) -> str:
    return formatting.NONE if value is None else f"{value:g}"
