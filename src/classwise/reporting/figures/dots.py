"""Dot plots with intervals: several methods, or the difference per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from classwise.reporting import formatting
from classwise.reporting.figures.axes import ticks
from classwise.reporting.figures.layout import Key, RowNames, is_narrow, legend, title_lines
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Dot, Drawing, Group, Label, Line, Mark

WIDTH = 1040.0
ROW_WIDTH = 760.0
"""Width of figures with one row per class, in pixels."""
NAME_LETTERS = 22
MAX_ESTIMATES = 40
"""Maximum number of classes in a figure of estimates."""


class Value(NamedTuple):
    """A value with its interval, as fractions, and its number of images."""

    value: float
    low: float
    high: float
    images: int


def dot_rows(
    title: str,
    rows: Sequence[str],
    series: Sequence[str],
    values: Sequence[Sequence[Value]],
    *,
    difference: bool = False,
    alpha: float = 0.05,
    width: float | None = None,
) -> Drawing:
    """Draw a row per class (or metric) with a dot and its interval per series.

    Args:
        title: title of the figure.
        rows: names of the rows, from top to bottom.
        series: names of the series.
        values: for each row, a value per series.
        difference: the values are differences around zero, shown in percentage points, instead of accuracies.
        alpha: significance level of the intervals, for the hover texts.
        width: width of the drawing in pixels; None: that of a page. See `layout.STACKED`.
    """
    names, width = RowNames.of(rows, NAME_LETTERS, narrow=is_narrow(width)), width or WIDTH
    pitch = max(24.0, 11.0 * len(series) + 8) + names.line
    side = names.left + (16 if names.line else 18)
    marks, top = title_lines(title, width)
    if len(series) > 1:
        keys = [Key(name, f"dot-{SERIES[place % len(SERIES)]}") for place, name in enumerate(series)]
        legend_marks, top = legend(keys, 0 if names.line else side, top, width)
        marks += legend_marks
    top += 12
    drawing = Drawing(width, top + pitch * len(rows) + 30, title, marks)
    finite = [end for row in values for value in row for end in (value.low, value.high, value.value)]
    marks_at = _ticks(np.array(finite), difference)
    scale = (width - side - (18 if names.line else 24)) / (marks_at[-1] - marks_at[0])

    def x(value: float) -> float:
        return side + (value - marks_at[0]) * scale

    bottom = top + pitch * len(rows)
    for tick in marks_at:
        style = "divider" if difference and tick == 0 else "rule"
        drawing.marks.extend(names.grid_line(x(tick), top, pitch, len(rows), style))
        text = formatting.points(tick, sign=True).removesuffix(".0") if difference else f"{100 * tick:.0f}"
        drawing.marks.append(Label(x(tick), bottom + 17, text, "text-soft", 10.5, "middle"))
    for number, (name, row) in enumerate(zip(rows, values, strict=True)):
        middle = names.middle(top + pitch * number, pitch)
        drawing.marks.append(names.label(name, top + pitch * number, pitch))
        for place, value in enumerate(row):
            y = middle + (place - (len(row) - 1) / 2) * 11
            title = f"{name}, {series[place]}: {_hover_text(value, difference, alpha)}"
            corner = (x(value.low), x(value.value), x(value.high), y)
            drawing.marks.append(_dot(value, corner, SERIES[place % len(SERIES)], title))
    return drawing


def estimate_dots(title: str, estimates: pd.DataFrame, *, alpha: float, width: float | None = None) -> Drawing:
    """Draw at most `MAX_ESTIMATES` classes, lowest ``estimate`` first, with their ``low``, ``high`` and ``n``."""
    rows = estimates.sort_values("estimate", kind="stable").head(MAX_ESTIMATES)
    values = [[Value(row["estimate"], row["low"], row["high"], int(row["n"]))] for _, row in rows.iterrows()]
    names = [str(name) for name in rows.index]
    return dot_rows(title, names, ["estimate"], values, alpha=alpha, width=width or ROW_WIDTH)


def _dot(value: Value, place: tuple[float, float, float, float], colour: str, title: str) -> Group:
    if np.isnan(value.value):
        return Group([], title)
    low, middle, high, y = place
    if np.isnan(low) or np.isnan(high):
        return Group([Dot(middle, y, 4, f"dot-{colour}")], title, (middle - 5, y - 5, 10, 10))
    marks: list[Mark] = [Line([(low, y), (high, y)], f"stroke-{colour}"), Dot(middle, y, 4, f"dot-{colour}")]
    return Group(marks, title, (low - 5, y - 5, high - low + 10, 10))


def _hover_text(value: Value, difference: bool, alpha: float) -> str:
    if np.isnan(value.value):
        return "no images"
    if not difference:
        return formatting.measured(value.value, value.low, value.high, value.images, alpha)
    change = (
        f"{formatting.points(value.value, sign=True)} percentage points on {formatting.counted(value.images, 'image')}"
    )
    ends = formatting.signed_span(value.low, value.high)
    interval = formatting.NO_INTERVAL if ends == formatting.NONE else f"{formatting.level(alpha)} interval {ends}"
    return f"{change} ({interval})"


def _ticks(values: np.ndarray[tuple[int], np.dtype[np.float64]], difference: bool) -> list[float]:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return ticks(min(low, 0.0), max(high, 0.0)) if difference else ticks(0.0, high)
