"""Bounds of the accuracy per class: bars of correctly classified images and of images that are not judged."""

from __future__ import annotations

from collections.abc import Sequence

from classwise.reporting import formatting
from classwise.reporting.figures.bars import NAME_LETTERS, WIDTH
from classwise.reporting.figures.layout import Key, RowNames, is_narrow, legend, title_lines
from classwise.reporting.svg import Box, Drawing, Group, Label, Mark

ROW, FOOT, VALUE = 23.0, 30.0, 96.0
_KEYS = (Key("correct under every attack", "bar", 0.85), Key("not judged under every attack", "bar", 0.25))


def range_bars(
    title: str, names: Sequence[str], low: Sequence[float], high: Sequence[float], *, width: float | None = None
) -> Drawing:
    """Draw a row per class with its lower and upper bound.

    Args:
        title: title of the figure.
        names: names of the rows, from top to bottom.
        low: lower bound of each row: the fraction of images that are correct under every attack.
        high: upper bound of each row: ``low`` plus the fraction of images that are not judged.
        width: width of the drawing in pixels; None: that of a page. See `layout.STACKED`.
    """
    rows, width = RowNames.of(names, NAME_LETTERS, narrow=is_narrow(width)), width or WIDTH
    left = rows.left + (4 if rows.line else 18)
    scale, pitch = width - left - VALUE, ROW + rows.line
    marks, below = title_lines(title, width)
    keys, top = legend(_KEYS, left, below, width)
    top += 6
    bottom = top + pitch * len(names)
    drawing = Drawing(width, bottom + FOOT, title, [*marks, *keys])
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = left + tick * scale
        drawing.marks.extend(rows.grid_line(x, top, pitch, len(names), "rule"))
        drawing.marks.append(Label(x, bottom + 17, f"{100 * tick:.0f}", "text-soft", 10.5, "middle"))
    for place, (name, least, most) in enumerate(zip(names, low, high, strict=True)):
        middle = rows.middle(top + pitch * place, pitch)
        span = formatting.span(least, most)
        bars: list[Mark] = [
            Box(left, middle - 6.5, least * scale, 13, "bar", 0.85),
            Box(left + least * scale, middle - 6.5, (most - least) * scale, 13, "bar", 0.25),
            Label(width - 2, middle + 4, span, "text", 11.5, "end"),
        ]
        drawing.marks.append(rows.label(name, top + pitch * place, pitch))
        drawing.marks.append(Group(bars, f"{name}: between {span}\u00a0%", (0, middle - ROW / 2, width, ROW)))
    return drawing
