"""Bar charts of the accuracy per class and attack: a panel per attack, a bar with its interval per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from classwise.reporting import formatting
from classwise.reporting.figures.layout import RowNames, is_narrow, title_lines
from classwise.reporting.svg import NARROW, Box, Drawing, Group, Label, Line, Mark, shorten
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import class_intervals
from classwise.stats.metrics import overall_micro, worst_class

WIDTH = 1040.0
HEAD, FOOT, GUTTER = 44.0, 26.0, 20.0
PANEL, SPACE, VALUE = 148.0, 18.0, 40.0
NAME_LETTERS = 20


class _Layout(NamedTuple):
    """Sizes in pixels: of the rows of names, the panels in a row, the width of a panel, and the pitch of rows."""

    names: RowNames
    left: float
    across: int
    panel: float
    pitch: float

    @staticmethod
    def of(names: Sequence[str], panels: int, width: float) -> _Layout:
        narrow = is_narrow(width)
        rows = RowNames.of(names, NAME_LETTERS, narrow=narrow)
        if narrow:
            across = min(panels, 2)
            return _Layout(rows, 0.0, across, (width - SPACE * (across - 1)) / across, 36.0)
        left = rows.left + 58
        across = max(1, min(panels, int((width - left + SPACE) // (PANEL + SPACE))))
        across = -(-panels // -(-panels // across))  # equally long rows of panels
        panel = min(300.0, (width - left + SPACE) / across - SPACE)
        return _Layout(rows, left, across, panel, 23.0 if len(names) <= 15 else 18.0)

    @property
    def width(self) -> float:
        return self.left + self.across * (self.panel + SPACE) - SPACE


def class_bars(
    names: Sequence[str],
    counts: Mapping[str, ClassCounts],
    order: Sequence[int],
    *,
    alpha: float = 0.05,
    highlight: Sequence[int] = (),
    kind: str = "class",
    width: float | None = None,
    attacks: Sequence[str] = (),
) -> Drawing:
    """Draw small multiples with shared rows: a panel per attack, a row per class.

    The worst class of each panel is highlighted, unless several tie; a dashed line marks the overall accuracy.

    Args:
        names: names of the C classes.
        counts: images and correct predictions per class, by attack in the order of the panels.
        order: labels of the shown classes, from top to bottom.
        alpha: significance level; intervals have coverage 1 - alpha.
        highlight: labels of classes whose names are coloured, such as those that may be the worst.
        kind: noun of a row, for the title.
        width: width of the drawing in pixels; None: that of a page. See `layout.STACKED`.
        attacks: the attacks of the panels, if their headings differ from these; bars link to their images.
    """
    layout = _Layout.of([names[label] for label in order], len(counts), width or WIDTH)
    wide = max(layout.width, min(NARROW, width or WIDTH))
    title = f"Accuracy per {kind} and attack, percent, with {formatting.level(alpha)} intervals"
    marks, start = title_lines(title, wide)
    height = HEAD + layout.pitch * len(order) + FOOT + GUTTER
    blocks = -(-len(counts) // layout.across)
    drawing = Drawing(wide, start + blocks * height - GUTTER, title, marks)
    for number, (heading, sums) in enumerate(counts.items()):
        block, column = divmod(number, layout.across)
        top = start + block * height
        if column == 0:
            drawing.marks.extend(_names(names, sums, order, highlight, layout, top + HEAD))
        left = layout.left + column * (layout.panel + SPACE)
        attack = attacks[number] if attacks else heading
        drawing.marks.extend(_panel(names, (heading, attack), sums, order, layout, (left, top), alpha))
    return drawing


def _names(
    names: Sequence[str],
    sums: ClassCounts,
    order: Sequence[int],
    highlight: Sequence[int],
    layout: _Layout,
    first: float,
) -> list[Mark]:
    right = layout.width if layout.names.line else layout.left - 16
    marks: list[Mark] = [] if layout.names.line else [Label(right, first - 10, "n", "text-soft", 11, "end")]
    for place, label in enumerate(order):
        top = first + layout.pitch * place
        style = "text-weak" if label in highlight else "text"
        images = ("n " if layout.names.line else "") + formatting.count(sums.count[label])
        marks.append(layout.names.label(names[label], top, layout.pitch, style))
        marks.append(Label(right, layout.names.base(top, layout.pitch), images, "text-soft", 11, "end"))
    return marks


def _panel(
    names: Sequence[str],
    panel: tuple[str, str],
    sums: ClassCounts,
    order: Sequence[int],
    layout: _Layout,
    corner: tuple[float, float],
    alpha: float,
) -> list[Mark]:
    (heading, attack), (left, top), width, row = panel, corner, layout.panel, layout.pitch
    accuracy, (low, high) = sums.accuracy, class_intervals(sums, alpha)
    scale = width - VALUE
    first, last = top + HEAD, top + HEAD + row * len(order)
    overall = overall_micro(sums)
    letters = int(width / (13 * 0.62))
    marks: list[Mark] = [
        Label(left, top + 14, shorten(heading, letters), "text", 13, bold=True),
        Label(left, top + 30, f"overall {formatting.percent(overall)}", "text-soft", 11),
    ]
    for tick in (0.0, 0.5, 1.0):
        x = left + tick * scale
        marks.extend(layout.names.grid_line(x, first, row, len(order), "rule"))
        marks.append(Label(x, last + 17, f"{100 * tick:.0f}", "text-soft", 10, "middle" if tick or left else "start"))
    lowest = np.flatnonzero(accuracy == accuracy[worst_class(accuracy).label]).tolist()
    for number, label in enumerate(order):
        middle = layout.names.middle(first + row * number, row)
        box = (left, middle - row / 2, width, row)
        value, ends = float(accuracy[label]), (float(low[label]), float(high[label]))
        title = f"{names[label]}, {heading}: {formatting.measured(value, *ends, int(sums.count[label]), alpha)}"
        place = (left, middle, scale, min(row, 23.0))
        bar = _bar(accuracy, low, high, label, place, [label] == lowest)
        marks.append(Group(bar, title, box, {"attack": attack, "group": label}))
    if not np.isnan(overall):
        x = left + overall * scale
        marks.extend(layout.names.grid_line(x, first, row, len(order), "guide"))
    return marks


def _bar(
    accuracy: FloatArray,
    low: FloatArray,
    high: FloatArray,
    label: int,
    place: tuple[float, float, float, float],
    worst: bool,
) -> list[Mark]:
    left, middle, scale, row = place
    value = float(accuracy[label])
    number = Label(
        left + scale + VALUE - 2,
        middle + 4,
        formatting.bare_percent(value),
        "text-weak" if worst else "text",
        11.5,
        "end",
        bold=worst,
    )
    if np.isnan(value):
        return [number]
    thick = 0.56 * row
    return [
        Box(left, middle - thick / 2, value * scale, thick, "bar-weak" if worst else "bar", 0.85, round=1.5),
        Line([(left + low[label] * scale, middle), (left + high[label] * scale, middle)], "whisker"),
        number,
    ]
