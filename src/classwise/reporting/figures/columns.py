"""Column charts in panels: histograms, confidences, one value per class and model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from classwise.reporting.figures.axes import ticks
from classwise.reporting.svg import Box, Drawing, Group, Label, Line, Mark, shorten, width_of

PANEL_HEIGHT, HEAD, SPACE, LEFT = 150.0, 40.0, 22.0, 40.0
MAX_WIDTH = 1040.0


class Panel(NamedTuple):
    """The columns of one panel.

    Attributes:
        title: title of the panel.
        values: (n,) heights.
        low: (n,) lower limits of intervals, or None.
        high: (n,) upper limits of intervals, or None.
        marked: positions of the highlighted columns.
    """

    title: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    marked: Sequence[int] = ()


def column_panels(
    title: str,
    names: Sequence[str],
    panels: Sequence[Panel],
    *,
    across: int | None = None,
    text: Callable[[float], str] = lambda value: f"{value:.3g}",
    highest: float | None = None,
) -> Drawing:
    """Draw panels with shared axes.

    Args:
        title: title of the figure.
        names: (n,) labels below the columns.
        panels: panels in reading order.
        across: number of panels in a row; None: as many as fit.
        text: formats a value.
        highest: upper limit of the axis; None: fitted to the values.
    """
    step = 26.0 if len(names) <= 12 else 14.0
    wide = max(step * len(names), 90.0)
    fit = max(1, int((MAX_WIDTH - LEFT + SPACE) // (wide + SPACE)))
    across = min(len(panels), across or fit, fit) or 1
    foot = 0.72 * max(width_of(shorten(name, 14), 10.5) for name in names) + 16
    block = HEAD + PANEL_HEIGHT + foot
    rows = -(-len(panels) // across)
    drawing = Drawing.titled(max(LEFT + across * (wide + SPACE), width_of(title, 13.5)), 22 + rows * block, title)
    known = [v for p in panels for part in (p.values, p.high) if part is not None for v in part if math.isfinite(v)]
    levels = ticks(0.0, highest or max([*known, 0.0]) or 1.0)
    for number, panel in enumerate(panels):
        row, column = divmod(number, across)
        corner = (LEFT + column * (wide + SPACE), 22 + row * block + HEAD)
        drawing.marks.extend(_axis(levels, corner, wide, text, first=column == 0))
        drawing.marks.append(Label(corner[0], corner[1] - 14, shorten(panel.title, int(wide / 6.4)), "text", 11.5))
        drawing.marks.extend(_columns(panel, names, levels[-1], corner, wide / len(names), text))
    return drawing


def _axis(
    levels: Sequence[float], corner: tuple[float, float], wide: float, text: Callable[[float], str], *, first: bool
) -> list[Mark]:
    left, top = corner
    marks: list[Mark] = []
    for level in levels:
        y = top + PANEL_HEIGHT * (1 - level / levels[-1])
        marks.append(Line([(left, y), (left + wide, y)], "rule"))
        if first:
            marks.append(Label(left - 6, y + 4, text(level), "text-soft", 10.5, "end"))
    return marks


def _columns(
    panel: Panel,
    names: Sequence[str],
    most: float,
    corner: tuple[float, float],
    step: float,
    text: Callable[[float], str],
) -> list[Mark]:
    left, top = corner
    base = top + PANEL_HEIGHT
    marks: list[Mark] = []
    for at, (name, value) in enumerate(zip(names, panel.values, strict=True)):
        middle = left + step * (at + 0.5)
        style = "text-weak" if at in panel.marked else "text-soft"
        marks.append(Label(middle + 4, base + 12, shorten(name, 14), style, 10.5, "end", angle=-45))
        if not math.isfinite(value):
            continue
        height = PANEL_HEIGHT * value / most
        bar = "bar-weak" if at in panel.marked else "bar"
        inner: list[Mark] = [Box(middle - 0.36 * step, base - height, 0.72 * step, height, bar, 0.85)]
        hover_text = f"{panel.title}, {name}: {text(value)}"
        if panel.low is not None and panel.high is not None and math.isfinite(panel.low[at]):
            ends = [base - PANEL_HEIGHT * end / most for end in (panel.low[at], panel.high[at])]
            inner.append(Line([(middle, ends[0]), (middle, ends[1])], "whisker"))
            hover_text += f" ({text(panel.low[at])} to {text(panel.high[at])})"
        marks.append(Group(inner, hover_text, (left + step * at, top, step, PANEL_HEIGHT)))
    return marks
