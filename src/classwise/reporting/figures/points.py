"""Scatter plots: panels of points such as t-SNE embeddings, or one named dot per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from classwise.reporting.figures.curves import ticks
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Dot, Drawing, Group, Label, Line, Mark, shorten, width_of
from classwise.stats.counts import FloatArray, IntArray

SIDE, HEAD, SPACE = 340.0, 44.0, 30.0
MAX_POINTS = 4000
"""Maximum number of drawn points; of more, an evenly spaced subset is drawn."""


class Cloud(NamedTuple):
    """A panel of points.

    Attributes:
        title: title of the panel.
        x: (N,) horizontal positions.
        y: (N,) vertical positions.
        group: (N,) group of each point.
    """

    title: str
    x: FloatArray
    y: FloatArray
    group: IntArray


def clouds(
    title: str, panels: Sequence[Cloud], names: Sequence[str], colours: Sequence[int], note: str = ""
) -> Drawing:
    """Draw points coloured by group; each group's name is placed at its median, shifted to avoid overlaps.

    Args:
        title: title of the figure.
        panels: panels with shared axes.
        names: one per group.
        colours: index of each group's colour in `palette.SERIES`, modulo its length.
        note: a line below the title.
    """
    drawing = Drawing(len(panels) * (SIDE + SPACE), HEAD + SIDE + 34, title)
    drawing.marks.extend([Label(0, 14, title, "text", 13, bold=True), Label(0, 31, note, "text-soft", 11)])
    every = max(1, -(-sum(len(panel.x) for panel in panels) // MAX_POINTS))
    xs, ys = (np.concatenate([getattr(panel, axis) for panel in panels]) for axis in ("x", "y"))
    low = np.array([xs.min(), ys.min()])
    width = np.maximum(np.array([xs.max(), ys.max()]) - low, 1e-12)
    for number, panel in enumerate(panels):
        left, top = number * (SIDE + SPACE), HEAD + 22
        drawing.marks.append(Label(left, HEAD + 12, panel.title, "text", 11.5))
        corners = [(left, top), (left + SIDE, top), (left + SIDE, top + SIDE), (left, top + SIDE), (left, top)]
        drawing.marks.append(Line(corners, "rule"))
        across = left + 6 + (SIDE - 12) * (panel.x - low[0]) / width[0]
        down = top + 6 + (SIDE - 12) * (panel.y - low[1]) / width[1]
        texts: list[Mark] = []
        taken: list[_Rectangle] = []
        for group in np.unique(panel.group).tolist():
            members = np.flatnonzero(panel.group == group)
            colour = SERIES[colours[group] % len(SERIES)]
            dots = [Dot(float(across[at]), float(down[at]), 1.7, f"dot-{colour}") for at in members[::every]]
            drawing.marks.append(Group(dots, names[group]))
            middle = float(np.median(across[members])), float(np.median(down[members])) + 4
            label, box = _near(shorten(names[group], 12), *middle, taken)
            taken.append(box)
            texts.append(label)
        drawing.marks.extend(texts)
    return drawing


def scatter(title: str, names: Sequence[str], x: ArrayLike, y: ArrayLike, axes: tuple[str, str], note: str) -> Drawing:
    """Draw a named dot per class.

    Args:
        title: title of the figure.
        names: one per dot.
        x: (n,) horizontal values.
        y: (n,) vertical values, fractions shown in percent.
        axes: labels of the two axes.
        note: a line below the title.
    """
    across, upward = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    short = [shorten(name, 20) for name in names]
    wide, left, right, top = 440.0, 44.0, max(96.0, *(width_of(name, 11) + 12 for name in short)), HEAD + 8
    drawing = Drawing(left + wide + right, top + SIDE + 44, title)
    drawing.marks.extend([Label(0, 14, title, "text", 13, bold=True), Label(0, 31, note, "text-soft", 11)])
    columns, levels = ticks(float(across.min()), float(across.max())), ticks(0.0, float(upward.max()))

    def x_of(value: float) -> float:
        return left + wide * (value - columns[0]) / (columns[-1] - columns[0])

    def y_of(value: float) -> float:
        return top + SIDE * (1 - (value - levels[0]) / (levels[-1] - levels[0]))

    for level in levels:
        drawing.marks.append(Line([(left, y_of(level)), (left + wide, y_of(level))], "rule"))
        drawing.marks.append(Label(left - 6, y_of(level) + 4, f"{100 * level:.0f}", "text-soft", 10.5, "end"))
    for column in columns:
        drawing.marks.append(Label(x_of(column), top + SIDE + 16, f"{column:.4g}", "text-soft", 10.5, "middle"))
    drawing.marks.append(Label(left + wide / 2, top + SIDE + 34, axes[0], "text-soft", 10.5, "middle"))
    drawing.marks.append(Label(11, top + SIDE / 2, axes[1], "text-soft", 10.5, "middle", angle=-90))
    places = [(x_of(float(a)), y_of(float(b))) for a, b in zip(across, upward, strict=True)]
    axis = (0.0, 0.0, left - 2, drawing.height)  # keeps names off the axis numbers
    taken = [axis, *((a - 5, b - 5, a + 5, b + 5) for a, b in places)]
    for at in np.argsort(-upward, kind="stable").tolist():
        left_of, top_of = places[at]
        hover_text = f"{names[at]}: {axes[0]} {across[at]:.4g}, {axes[1]} {100 * upward[at]:.1f}"
        drawing.marks.append(Group([Dot(left_of, top_of, 4, "dot-main")], hover_text))
        label, box = _beside(short[at], left_of, top_of, taken)
        taken.append(box)
        drawing.marks.append(label)
    return drawing


_Rectangle = tuple[float, float, float, float]


def _near(text: str, x: float, y: float, taken: Sequence[_Rectangle]) -> tuple[Label, _Rectangle]:
    """A name centred at a position, shifted up or down by the least distance that avoids other names."""
    half, step, free = width_of(text, 11.5) / 2, 13, len(taken) + 1
    for shift in sorted(range(-free, free + 1), key=abs):
        at = y + shift * step
        box = (x - half, at - 11, x + half, at + 2)
        if not any(_overlap(box, other) for other in taken):
            break
    return Label(x, at, text, "text", 11.5, "middle", bold=True), box


def _beside(text: str, x: float, y: float, taken: Sequence[_Rectangle]) -> tuple[Label, _Rectangle]:
    """A name at the first free side of its dot: right, left, above or below; otherwise on the right."""
    size, wide = 11, width_of(text, 11)
    choices: list[tuple[Label, _Rectangle]] = [
        (Label(x + 8, y + 4, text, "text", size), (x + 7, y - 6, x + 8 + wide, y + 6)),
        (Label(x - 8, y + 4, text, "text", size, "end"), (x - 8 - wide, y - 6, x - 7, y + 6)),
        (Label(x, y - 8, text, "text", size, "middle"), (x - wide / 2, y - 18, x + wide / 2, y - 6)),
        (Label(x, y + 17, text, "text", size, "middle"), (x - wide / 2, y + 6, x + wide / 2, y + 19)),
    ]
    return next((choice for choice in choices if not any(_overlap(choice[1], other) for other in taken)), choices[0])


def _overlap(one: _Rectangle, other: _Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
