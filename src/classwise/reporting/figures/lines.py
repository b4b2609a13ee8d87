"""Line charts over a numeric axis: sweeps, trends, ablations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from classwise.reporting import formatting
from classwise.reporting.figures.axes import Axes, ticks
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Dot, Drawing, Group, Label, Line, Mark, shorten

WIDTH, HEIGHT = 540.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 156.0, 34.0, 40.0


class Series(NamedTuple):
    """A line with its name at its right end.

    Attributes:
        name: name of the series.
        x: (n,) positions, ascending.
        y: (n,) values; the line is interpolated over NaN.
        style: line style; highlighted lines have dots if there are few positions.
        low: (n,) lower edge of a shaded band, or None.
        high: (n,) upper edge of a shaded band, or None.
        named: show the name at the right end of the line; otherwise only in the hover text.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "line"
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    named: bool = True


OVERALL = "overall"
"""Column of the values over all classes in a table of `class_lines`."""
NAMED = 12
"""Maximum number of classes whose names are all shown."""
_PALETTE = {"line-weak": "text-weak", "line-good": "text-good", "line-overall": "text", "guide-weak": "text-weak"}
_DOTS = {"line-weak": "dot-weak", "line-good": "dot-good", **{f"stroke-{colour}": f"dot-{colour}" for colour in SERIES}}
_FEW = 9
"""Maximum number of positions that are all labelled and marked by dots."""


def line_chart(
    title: str, lines: Sequence[Series], x_label: str, *, difference: bool = False, share: bool = True
) -> Drawing:
    """Draw lines in order, the first one at the back.

    Args:
        title: title of the figure.
        lines: series to draw.
        x_label: label of the x axis.
        difference: the values are differences around zero, shown in percentage points.
        share: the values are fractions, shown in percent; otherwise they are shown unscaled.
    """
    drawing = Drawing.titled(WIDTH, HEIGHT, title)
    xs = np.array([x for line in lines for x in line.x])
    ends = [value for line in lines for part in (line.y, line.low, line.high) if part is not None for value in part]
    known = np.array([value for value in ends if math.isfinite(value)] or [0.0])
    bottom = min(float(known.min()), 0.0) if difference or share else float(known.min())
    levels = ticks(bottom, max(float(known.max()), 0.0))
    first, last = (float(xs.min()), float(xs.max())) if xs.size else (0.0, 1.0)
    axes = Axes(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM, (first, last), (levels[0], levels[-1]))
    texts = [(level, _text(level, share=share, difference=difference).removesuffix(".0")) for level in levels]
    numbers = [(place, f"{place:.4g}") for place in _places(sorted(set(xs.tolist())))]
    drawing.marks.extend(axes.grid(texts, numbers, x_label, divider=0.0 if difference else None))
    several = sum(line.low is not None for line in lines) > 1
    for line in lines:
        if line.low is not None and line.high is not None:
            edge = axes.path(line.x, line.high) + axes.path(line.x, line.low)[::-1]
            coloured = several and line.style in _DOTS  # bands in the colours of their lines, to distinguish them
            style, opacity = (_DOTS[line.style], 0.12) if coloured else ("gap", 0.35)
            drawing.marks.append(Line(edge, style, closed=True, opacity=opacity))
    for line in lines:
        points = axes.path(line.x, line.y)
        if points:
            marks: list[Mark] = [Line(points, line.style)]
            if line.style in _DOTS and len(points) <= _FEW:
                marks += [Dot(*point, 2.6, _DOTS[line.style]) for point in points]
            both = (_last(line.y[::-1]), _last(line.y))
            first_text, last_text = (_text(end, share=share, difference=difference) for end in both)
            drawing.marks.append(Group(marks, f"{line.name}: from {first_text} to {last_text}"))
    drawing.marks.extend(_endings(lines, axes.y, share=share, difference=difference))
    return drawing


def class_lines(table: pd.DataFrame) -> list[Series]:
    """Series of all classes; the worst and the best class at the last position are highlighted.

    Args:
        table: a row per position (index, ascending), a column per class, and optionally a column ``overall``.
    """
    x = [float(value) for value in table.index]
    classes = [str(name) for name in table if name != OVERALL]
    last = table[classes].iloc[-1]
    special = {str(last.idxmax()): "line-good", str(last.idxmin()): "line-weak", OVERALL: "line-overall"}
    order = [*(name for name in classes if name not in special), *special]
    named = len(classes) <= NAMED
    return [
        Series(name, x, table[name].tolist(), special.get(name, "line"), named=named or name in special)
        for name in order
        if name in table
    ]


def _text(value: float, *, share: bool, difference: bool) -> str:
    if not share:
        return f"{value:.3g}"
    return formatting.points(value, sign=True) if difference else formatting.bare_percent(value)


def _last(values: Sequence[float]) -> float:
    return next((float(value) for value in reversed(values) if math.isfinite(value)), math.nan)


def _places(values: Sequence[float], most: int = _FEW) -> list[float]:
    """Positions to label: all if they are few, otherwise five of them."""
    if len(values) <= most:
        return list(values)
    return [values[round(at)] for at in np.linspace(0, len(values) - 1, 5)]


def _endings(lines: Sequence[Series], y_of: Callable[[float], float], *, share: bool, difference: bool) -> list[Mark]:
    """Names at the right ends of lines; names of coloured lines follow a dot of the same colour.

    Names are shifted apart where they would overlap, and up where they would leave the canvas.
    """
    known = [line for line in lines if line.named and not math.isnan(_last(line.y))]
    named = sorted(known, key=lambda line: -_last(line.y))
    pitch = min(13.0, (HEIGHT - BOTTOM - TOP + 20) / max(len(named), 1))
    places, lowest = list[float](), -math.inf
    for line in named:
        lowest = max(y_of(_last(line.y)) + 4, lowest + pitch)
        places.append(lowest)
    ceiling = HEIGHT - BOTTOM + 4  # above the numbers of the axis
    for at in range(len(places) - 1, -1, -1):
        places[at] = min(places[at], ceiling)
        ceiling = places[at] - pitch
    coloured = [line.style in _DOTS and line.style not in _PALETTE for line in named]
    keys = [
        Dot(WIDTH - RIGHT + 11, y - 4, 3, _DOTS[line.style])
        for line, y, key in zip(named, places, coloured, strict=True)
        if key
    ]
    names = [
        Label(
            WIDTH - RIGHT + (18 if key else 7),
            y,
            f"{shorten(line.name, 17)} {_text(_last(line.y), share=share, difference=difference)}",
            _PALETTE.get(line.style, "text-soft"),
            11 if pitch > 11 else 9.5,
            bold=line.style in _PALETTE,
        )
        for line, y, key in zip(named, places, coloured, strict=True)
    ]
    return [*keys, *names]
