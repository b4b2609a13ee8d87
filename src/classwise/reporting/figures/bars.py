"""Bar charts of the accuracy per class and attack: a panel per attack, a bar with its interval per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from classwise.reporting import formatting
from classwise.reporting.svg import Box, Drawing, Group, Label, Line, Mark, shorten, width_of
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import class_intervals
from classwise.stats.metrics import overall_micro, worst_class

WIDTH = 1040.0
HEAD, FOOT, GUTTER = 44.0, 26.0, 20.0
PANEL, SPACE, VALUE = 148.0, 18.0, 40.0
NAME_LETTERS = 20


def class_bars(
    names: Sequence[str],
    counts: Mapping[str, ClassCounts],
    order: Sequence[int],
    *,
    alpha: float = 0.05,
    highlight: Sequence[int] = (),
) -> Drawing:
    """Draw small multiples with shared rows: a panel per attack, a row per class.

    The worst class of each panel is highlighted; a dashed line marks the overall accuracy.

    Args:
        names: names of the C classes.
        counts: images and correct predictions per class, by attack in the order of the panels.
        order: labels of the shown classes, from top to bottom.
        alpha: significance level; intervals have coverage 1 - alpha.
        highlight: labels of classes whose names are coloured: the worst class first, then other candidates.
    """
    side = name_column([names[label] for label in order]) + 58
    across = max(1, min(len(counts), int((WIDTH - side + SPACE) // (PANEL + SPACE))))
    blocks = -(-len(counts) // across)
    across = -(-len(counts) // blocks)  # equally long rows of panels
    row = 23.0 if len(order) <= 15 else 18.0
    panel = min(300.0, (WIDTH - side + SPACE) / across - SPACE)
    block_height = HEAD + row * len(order) + FOOT + GUTTER
    width = side + across * (panel + SPACE) - SPACE
    drawing = Drawing(
        width,
        blocks * block_height - GUTTER,
        f"Accuracy per class and attack, with {formatting.level(alpha)} intervals",
    )
    for number, (attack, sums) in enumerate(counts.items()):
        block, column = divmod(number, across)
        top = block * block_height
        if column == 0:
            drawing.marks.extend(_names(names, sums, order, highlight, side, top + HEAD, row))
        left = side + column * (panel + SPACE)
        drawing.marks.extend(_panel(names, attack, sums, order, (left, top, panel, row), alpha))
    return drawing


def _names(
    names: Sequence[str],
    sums: ClassCounts,
    order: Sequence[int],
    highlight: Sequence[int],
    side: float,
    top: float,
    row: float,
) -> list[Mark]:
    marks: list[Mark] = [Label(side - 16, top - 10, "n", "text-soft", 11, "end")]
    for place, label in enumerate(order):
        base = top + row * (place + 0.5) + 4
        style = "text-weak" if label in highlight else "text"
        bold = bool(highlight) and label == highlight[0]
        images = formatting.count(sums.count[label])
        marks.append(Label(0, base, shorten(names[label], NAME_LETTERS), style, 12.5, bold=bold))
        marks.append(Label(side - 16, base, images, "text-soft", 11, "end"))
    return marks


def _panel(
    names: Sequence[str],
    attack: str,
    sums: ClassCounts,
    order: Sequence[int],
    place: tuple[float, float, float, float],
    alpha: float,
) -> list[Mark]:
    left, top, width, row = place
    accuracy, (low, high) = sums.accuracy, class_intervals(sums, alpha)
    scale = width - VALUE
    first, last = top + HEAD, top + HEAD + row * len(order)
    overall = overall_micro(sums)
    letters = int(width / (13 * 0.56))
    marks: list[Mark] = [
        Label(left, top + 14, shorten(attack, letters), "text", 13, bold=True),
        Label(left, top + 30, f"overall {formatting.percent(overall)}", "text-soft", 11),
    ]
    for tick in (0.0, 0.5, 1.0):
        x = left + tick * scale
        marks.append(Line([(x, first - 3), (x, last + 3)], "rule"))
        marks.append(Label(x, last + 17, f"{100 * tick:.0f}", "text-soft", 10, "middle"))
    worst = worst_class(accuracy).label
    for number, label in enumerate(order):
        middle = first + row * (number + 0.5)
        box = (left, middle - row / 2, width, row)
        title = f"{names[label]}, {attack}: " + _hover_text(sums, accuracy, low, high, label, alpha)
        marks.append(Group(_bar(accuracy, low, high, label, (left, middle, scale, row), label == worst), title, box))
    if not np.isnan(overall):
        marks.append(Line([(left + overall * scale, first - 3), (left + overall * scale, last + 3)], "guide"))
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


def _hover_text(
    sums: ClassCounts, accuracy: FloatArray, low: FloatArray, high: FloatArray, label: int, alpha: float
) -> str:
    ends = float(low[label]), float(high[label])
    return formatting.measured(float(accuracy[label]), *ends, int(sums.count[label]), alpha)


def name_column(names: Sequence[str], size: float = 12.5, letters: int = NAME_LETTERS) -> float:
    """Width of the longest name, in pixels."""
    return max((width_of(shorten(name, letters), size) for name in names), default=0.0)
