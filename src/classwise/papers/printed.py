"""Tables as printed in the papers, with metrics recomputed from the printed class accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from classwise.papers import catalogue
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metrics

NAMES = ("defence", "method", "attack", "test_set", "line")
"""Keys that form the name of a row, in this order."""
_CV_ROUNDING, _MCD_ROUNDING, _TOTAL_ROUNDING = 0.15, 0.1, 0.1
"""Tolerances between recomputed and printed metrics: the papers truncate to one decimal, in float32."""
_FLOAT = 1e-6


class Recomputed(NamedTuple):
    """Metrics recomputed from the printed class accuracies of a row.

    Attributes:
        total: mean over classes, percent.
        cv: variance over classes, percent squared.
        mcd: highest minus lowest class, points.
        agrees: whether all printed metrics agree up to the rounding of the papers.
    """

    total: float
    cv: float
    mcd: float
    agrees: bool


def recompute(row: Mapping[str, Any]) -> Recomputed | None:
    """Recompute the metrics of a row with printed class accuracies (percent); None for other rows."""
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
    """Name of a printed row, such as ``Madry, PGD`` or ``HE, 1/T = 50``."""
    parts = [str(row[key]) for key in NAMES if key in row]
    if "inv_T" in row:
        parts.append(f"1/T = {row['inv_T']}")
    return ", ".join(parts)


def printed_table(item: str) -> Table | None:
    """Table of the printed rows of an item; None for an item without printed rows.

    Total, CV and MCD of rows with class accuracies are recomputed; rows that disagree are highlighted.
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
    table_rows = []
    for row in rows:
        metrics_of_row = recompute(row)
        assert metrics_of_row is not None
        cells = [Cell(_text(row.get("tot", row.get("adv"))), f"{metrics_of_row.total:.2f}")]
        cells += [Cell(f"{value:.1f}") for value in row["per_class"]]
        cells += [
            Cell(_text(row.get("cv")), f"{metrics_of_row.cv:.2f}"),
            Cell(_text(row.get("mcd")), f"{metrics_of_row.mcd:.1f}"),
        ]
        table_rows.append(Row(row_name(row), cells, weak=not metrics_of_row.agrees))
    wrong = sum(row.weak for row in table_rows)
    note = "Small print: recomputed from the class accuracies."
    note += f" Highlighted: {wrong} of {len(table_rows)} rows that disagree; see the notes." if wrong else ""
    return Table(caption, ("row", "total", *map(str, range(classes)), "CV", "MCD"), table_rows, note)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return " ".join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)
