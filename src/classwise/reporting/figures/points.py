"""Scatter plots: panels of points such as t-SNE embeddings, or one named dot per class or method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from classwise.reporting import formatting
from classwise.reporting.figures.axes import SMALL, Axes, ticks
from classwise.reporting.figures.dots import Value
from classwise.reporting.figures.layout import NAME_LINE, is_narrow, title_lines
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Anchor, Dot, Drawing, Group, Label, Line, Mark, shorten, width_of
from classwise.stats.counts import FloatArray, IntArray

SIDE, HEAD, SPACE, EDGE = 340.0, 44.0, 30.0, 44.0
WIDTH = 760.0
NAME_LETTERS, NAME_SIZE = 28, 11
MAX_NAMES = 12
"""Maximum number of dots with a name beside them where names may overlap."""
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
    below = Label(0, 31, note, "text-soft", 11)
    drawing = Drawing.titled(len(panels) * (SIDE + SPACE), HEAD + SIDE + 34, title, below)
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
    """Draw a dot per class, with its name where a place beside it is free; the hover text has every name.

    Args:
        title: title of the figure.
        names: one per dot.
        x: (n,) horizontal values.
        y: (n,) vertical values, fractions shown in percent.
        axes: labels of the two axes.
        note: a line below the title.
    """
    across, upward = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    short = [shorten(name, NAME_LETTERS) for name in names]
    columns, levels = ticks(float(across.min()), float(across.max())), ticks(0.0, float(upward.max()))
    plane, grid = _plane(HEAD + 8, 440.0, [(column, f"{column:.4g}") for column in columns], levels, axes)
    right = max(96.0, *(width_of(name, NAME_SIZE) + 12 for name in short))
    below = Label(0, 31, note, "text-soft", 11)
    drawing = Drawing.titled(plane.right + right, plane.bottom + 44, title, below, *grid)
    places = [plane.place(float(a), float(b)) for a, b in zip(across, upward, strict=True)]
    axes_texts = [(-np.inf, -np.inf, plane.left - 2, np.inf), (-np.inf, plane.bottom + 7, np.inf, np.inf)]
    taken = [*axes_texts, *(_around(*place) for place in places)]
    for at in np.argsort(-upward, kind="stable").tolist():
        hover_text = f"{names[at]}: {axes[0]} {across[at]:.4g}, {axes[1]} {formatting.bare_percent(float(upward[at]))}"
        drawing.marks.append(Group([_dot(places[at], "dot-main")], hover_text))
        if free := _free(_beside(short[at], places[at], (*_BESIDE, *_DIAGONALLY)), taken):
            drawing.marks.append(free[0])
            taken.append(free[1])
    return drawing


def trade_off(
    title: str,
    names: Sequence[str],
    values: Sequence[tuple[Value, Value]],
    axes: tuple[str, str],
    *,
    alpha: float = 0.05,
    width: float | None = None,
) -> Drawing:
    """Draw a named dot per method, with the intervals of its two accuracies.

    Dots of methods that no other method exceeds in both accuracies are dark and have bold names. More than `MAX_NAMES`
    dots have numbers, with the names in a column beside them; for narrow screens all have, with the names below.

    Args:
        title: title of the figure.
        names: one per dot.
        values: for each dot, the horizontal and the vertical value, shown in percent.
        axes: labels of the two axes.
        alpha: significance level of the intervals, for the hover texts.
        width: width of the drawing in pixels; None: that of a page. See `layout.STACKED`.
    """
    narrow, width = is_narrow(width), width or WIDTH
    marks, head = title_lines(title, width)
    points = np.array([[value.value for value in pair] for pair in values])
    columns, levels = (
        ticks(min(value.low for value in axis), max(value.high for value in axis)) for axis in zip(*values, strict=True)
    )
    numbered = narrow or len(names) > MAX_NAMES
    wide = width - EDGE - (12.0 if narrow else 230.0 if numbered else 120.0)
    plane, grid = _plane(head + 12, wide, [(column, f"{100 * column:.4g}") for column in columns], levels, axes)
    bottom = plane.bottom + 44
    first = bottom if narrow else plane.top
    height = max(bottom, first + NAME_LINE * len(names)) if numbered else bottom
    drawing = Drawing(width, height, title, marks)
    drawing.marks.extend(grid)
    places = [plane.place(*point) for point in points.tolist()]
    edges = [(-np.inf, -np.inf, plane.left - 2, np.inf), (width, -np.inf, np.inf, np.inf)]
    taken = [*edges, *(_around(*place) for place in places)]
    drawing.marks.extend(line for pair in values for line in _cross(plane, *pair))
    best = unexceeded(points)
    for at in sorted(range(len(names)), key=lambda at: (not best[at], -points[at, 1])):
        texts = [f"{axis} {formatting.measured(*value, alpha)}" for axis, value in zip(axes, values[at], strict=True)]
        hover_text = f"{names[at]}: {', '.join(texts)}"
        drawing.marks.append(Group([_dot(places[at], "dot-main" if best[at] else "gap")], hover_text))
        name = f"{at + 1}" if numbered else shorten(names[at], NAME_LETTERS)
        choices = _beside(name, places[at], _DIAGONALLY, bold=best[at])
        label, box = _free(choices, taken) or choices[0]
        taken.append(box)
        drawing.marks.append(label)
    if numbered:
        left = plane.left if narrow else width - 190
        for at, name in enumerate(names):
            base = first + NAME_LINE * (at + 0.7)
            drawing.marks.append(Label(left - 6, base, f"{at + 1}", "text", NAME_SIZE, "end", bold=best[at]))
            drawing.marks.append(Label(left, base, shorten(name, NAME_LETTERS), "text", NAME_SIZE, bold=best[at]))
    return drawing


def unexceeded(points: FloatArray) -> list[bool]:
    """Whether no other point is higher in all coordinates.

    Args:
        points: (n, d).
    """
    ahead = (points[:, None] > points).all(axis=2)
    return [not exceeded for exceeded in np.atleast_1d(ahead.any(axis=0)).tolist()]


def _plane(
    top: float, wide: float, columns: Sequence[tuple[float, str]], levels: Sequence[float], labels: tuple[str, str]
) -> tuple[Axes, list[Mark]]:
    """Axes `SIDE` pixels high, and their grid with labels on both sides.

    Args:
        top: upper edge in pixels.
        wide: width in pixels.
        columns: ticks of the horizontal axis with their texts.
        levels: ticks of the vertical axis, fractions shown in percent.
        labels: labels of the two axes.
    """
    axes = Axes(EDGE, top, EDGE + wide, top + SIDE, (columns[0][0], columns[-1][0]), (levels[0], levels[-1]))
    grid = axes.grid([(level, f"{100 * level:.4g}") for level in levels], columns, labels[0])
    return axes, [*grid, Label(11, top + SIDE / 2, labels[1], "text-soft", SMALL, "middle", angle=-90)]


def _dot(place: tuple[float, float], style: str) -> Dot:
    return Dot(*place, radius=4, style=style)


def _cross(plane: Axes, x: Value, y: Value) -> tuple[Line, Line]:
    """The intervals of two values."""
    across = [plane.place(end, y.value) for end in (x.low, x.high)]
    return Line(across, "line"), Line([plane.place(x.value, end) for end in (y.low, y.high)], "line")


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


def _around(x: float, y: float) -> _Rectangle:
    """The place of a dot, which names do not cover."""
    return x - 5, y - 5, x + 5, y + 5


_Offset = tuple[float, float, Anchor]
_BESIDE: Sequence[_Offset] = ((8, 4, "start"), (-8, 4, "end"), (0, -8, "middle"), (0, 17, "middle"))
"""Where a name is placed from its dot: right, left, above or below."""
_DIAGONALLY: Sequence[_Offset] = (
    *((6.0, -5.0, "start"), (6.0, 14.0, "start"), (-6.0, -5.0, "end"), (-6.0, 14.0, "end")),
    *_BESIDE[2:],
)
"""Places that are not on the lines of intervals."""


def _beside(
    text: str, dot: tuple[float, float], offsets: Sequence[_Offset], *, bold: bool = False
) -> list[tuple[Label, _Rectangle]]:
    """A name at each place near its dot."""
    (x, y), wide = dot, width_of(text, NAME_SIZE, bold=bold)
    left_of = {"start": 0.0, "middle": wide / 2, "end": wide}
    choices: list[tuple[Label, _Rectangle]] = []
    for right, down, anchor in offsets:
        left, base = x + right - left_of[anchor], y + down
        label = Label(x + right, base, text, "text", NAME_SIZE, anchor, bold=bold)
        choices.append((label, (left, base - 10, left + wide, base + 2)))
    return choices


def _free(choices: Sequence[tuple[Label, _Rectangle]], taken: Sequence[_Rectangle]) -> tuple[Label, _Rectangle] | None:
    """The first place that overlaps none that is taken."""
    return next((choice for choice in choices if not any(_overlap(choice[1], other) for other in taken)), None)


def _overlap(one: _Rectangle, other: _Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
