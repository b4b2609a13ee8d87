"""Printed tables: their rows as tables of ours, with the metrics recomputed from the classes that they print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from classwise.papers import catalogue
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metrics

NAMES = ("defence", "method", "attack", "test_set", "line")
"""Keys that name a row, in the order in which the name has them."""
_CV_ROUNDING, _MCD_ROUNDING, _TOTAL_ROUNDING = 0.15, 0.1, 0.1
"""How far a metric may lie from the printed one: the papers truncate, in float32, numbers of one decimal."""
_FLOAT = 1e-6


class Recomputed(NamedTuple):
    """Metrics of a printed row, from the class accuracies that it prints.

    Attributes:
        total: mean of the classes, percent.
        cv: their variance, percent squared.
        mcd: the highest minus the lowest, points.
        agrees: whether all that the row prints of these agrees up to the papers' rounding.
    """

    total: float
    cv: float
    mcd: float
    agrees: bool


def recomputed(row: Mapping[str, Any]) -> Recomputed | None:
    """The metrics of a row that prints class accuracies (percent); None for another row."""
    if "per_class" not in row:
        return None
    a = np.array(row["per_class"], dtype=np.float64) / 100
    total, cv, mcd = (
        100 * metrics.overall_macro(a),
        1e4 * metrics.class_variance(a),
        100 * metrics.max_class_discrepancy(a),
    )
    compared = [(total, row.get("tot", row.get("adv")), _TOTAL_ROUNDING), (cv, row.get("cv"), _CV_ROUNDING)]
    compared.append((mcd, row.get("mcd"), _MCD_ROUNDING))
    agrees = all(value is None or abs(ours - value) <= within + _FLOAT for ours, value, within in compared)
    return Recomputed(total, cv, mcd, agrees)


def row_name(row: Mapping[str, Any]) -> str:
    """The name of a printed row: ``Madry, PGD``, ``HE, 1/T = 50``."""
    parts = [str(row[key]) for key in NAMES if key in row]
    if "inv_T" in row:
        parts.append(f"1/T = {row['inv_T']}")
    return ", ".join(parts)


def printed_table(item: str) -> Table | None:
    """The printed rows of an item; None for an item that prints none.

    Rows of class accuracies have their total, CV and MCD recomputed beside them, set off where they disagree.
    """
    rows = catalogue.printed_rows(item)
    if not rows:
        return None
    caption = f"{item} as printed: {catalogue.printed(item).get('caption', '')}".rstrip(": ")
    if all("per_class" in row for row in rows):
        return _of_classes(caption, rows)
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in (*NAMES, "inv_T")]
    cells = [Row(row_name(row), [Cell(_text(row.get(key))) for key in keys]) for row in rows]
    return Table(caption, ("row", *(key.replace("_", " ") for key in keys)), cells)


def _of_classes(caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    classes = len(rows[0]["per_class"])
    found = []
    for row in rows:
        again = recomputed(row)
        assert again is not None
        cells = [Cell(_text(row.get("tot", row.get("adv"))), f"{again.total:.2f}")]
        cells += [Cell(f"{value:.1f}") for value in row["per_class"]]
        cells += [Cell(_text(row.get("cv")), f"{again.cv:.2f}"), Cell(_text(row.get("mcd")), f"{again.mcd:.1f}")]
        found.append(Row(row_name(row), cells, weak=not again.agrees))
    wrong = sum(row.weak for row in found)
    note = "Small: recomputed from the classes."
    note += f" Set off: {wrong} of {len(found)} rows that do not agree; see the notes." if wrong else ""
    return Table(caption, ("row", "total", *map(str, range(classes)), "CV", "MCD"), found, note)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return " ".join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)
