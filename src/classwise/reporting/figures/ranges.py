"""Bounds of the accuracy per class: bars of correctly classified images and of images that are not judged."""

from __future__ import annotations

from collections.abc import Sequence

from classwise.reporting import formatting
from classwise.reporting.figures.bars import NAME_LETTERS, WIDTH, name_column
from classwise.reporting.svg import Box, Drawing, Group, Label, Line, Mark, shorten

TOP, ROW, FOOT, VALUE = 48.0, 23.0, 30.0, 96.0


def range_bars(title: str, names: Sequence[str], low: Sequence[float], high: Sequence[float]) -> Drawing:
    """Draw a row per class with its lower and upper bound.

    Args:
        title: title of the figure.
        names: names of the rows, from top to bottom.
        low: lower bound of each row: the fraction of images that are correct under every attack.
        high: upper bound of each row: ``low`` plus the fraction of images that are not judged.
    """
    left = name_column(names) + 18
    scale = WIDTH - left - VALUE
    bottom = TOP + ROW * len(names)
    drawing = Drawing(WIDTH, bottom + FOOT, title)
    drawing.marks.extend(
        [
            Label(0, 14, title, "text", 13, bold=True),
            Box(left, 26, 12, 10, "bar", 0.85),
            Label(left + 18, 35, "correct under every attack", "text-soft", 11.5),
            Box(left + 190, 26, 12, 10, "bar", 0.25),
            Label(left + 208, 35, "not judged under every attack", "text-soft", 11.5),
        ]
    )
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = left + tick * scale
        drawing.marks.append(Line([(x, TOP - 4), (x, bottom + 2)], "rule"))
        drawing.marks.append(Label(x, bottom + 17, f"{100 * tick:.0f}", "text-soft", 10.5, "middle"))
    for place, (name, least, most) in enumerate(zip(names, low, high, strict=True)):
        middle = TOP + ROW * (place + 0.5)
        span = formatting.span(least, most)
        marks: list[Mark] = [
            Box(left, middle - 6.5, least * scale, 13, "bar", 0.85),
            Box(left + least * scale, middle - 6.5, (most - least) * scale, 13, "bar", 0.25),
            Label(WIDTH - 2, middle + 4, span, "text", 11.5, "end"),
        ]
        drawing.marks.append(Label(0, middle + 4, shorten(name, NAME_LETTERS), "text", 12.5))
        drawing.marks.append(Group(marks, f"{name}: between {span}\u00a0%", (0, middle - ROW / 2, WIDTH, ROW)))
    return drawing
