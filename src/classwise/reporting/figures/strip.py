"""Strip plot of the class accuracies between 0 and 100 %, with the interval of the lowest one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from classwise.reporting import formatting
from classwise.reporting.figures.layout import title_lines
from classwise.reporting.svg import Dot, Drawing, Group, Label, Line, Mark, shorten, width_of
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals, lowest_interval
from classwise.stats.metrics import overall_micro, worst_class

WIDTH = 1040.0
MARGIN = 8.0
NAME_LINE = 16.0
MAX_TITLES = 150
"""Maximum number of classes whose ticks have hover texts."""


class _Axis(NamedTuple):
    """The axis from 0 to 100 %: its height, its width, and the width of the drawing, in pixels."""

    y: float
    width: float

    def x(self, share: Any) -> Any:
        """Position of a fraction (float or array), in pixels."""
        return MARGIN + share * (self.width - 2 * MARGIN - 12)


def class_strip(
    names: Sequence[str],
    counts: ClassCounts,
    under: str,
    alpha: float = 0.05,
    *,
    kind: str = "class",
    width: float | None = None,
) -> Drawing:
    """Draw one axis from 0 to 100 %: a tick per class, the overall accuracy, the interval of the lowest class accuracy.

    Args:
        names: names of the C classes.
        counts: images and correct predictions per class.
        under: condition of the accuracy for the title, such as ``under every attack``.
        alpha: significance level; intervals have coverage 1 - alpha.
        kind: the grouping of the ticks, for the title and the hover text.
        width: width of the drawing in pixels; None: that of a page.
    """
    accuracy, (low, high) = counts.accuracy, lowest_interval(counts, alpha)
    worst, best, overall = worst_class(accuracy).label, int(np.nanargmax(accuracy)), overall_micro(counts)
    width = width or WIDTH
    title = f"Accuracy per {formatting.singular(kind)} {under}, percent"
    marks, top = title_lines(title, width)
    captions = [
        (float(accuracy[worst]), names[worst], "text-weak"),
        (overall, "overall", "text-soft"),
        (float(accuracy[best]), names[best], "text-good"),
    ]
    named, lines = _captions(captions, _Axis(top, width), top)
    axis = _Axis(top + NAME_LINE * lines + 16, width)
    drawing = Drawing(width, axis.y + 34, title, [*marks, *named])
    drawing.marks.append(Line([(axis.x(0), axis.y), (axis.x(1), axis.y)], "rule"))
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        text = f"{100 * tick:.0f}" + ("\u00a0%" if tick == 1 else "")
        drawing.marks.append(Label(axis.x(tick), axis.y + 27, text, "text-soft", 10.5, "middle"))
    drawing.marks.extend(_class_ticks(names, counts, worst, axis, alpha))
    drawing.marks.append(Line([(axis.x(overall), axis.y - 14), (axis.x(overall), axis.y + 12)], "guide"))
    hover_text = (
        f"{names[worst]}: {formatting.percent(float(accuracy[worst]))} of {formatting.count(counts.count[worst])}; "
        f"{formatting.lowest_interval_name(alpha, kind)}: {formatting.span(low, high)}\u00a0%"
    )
    x = axis.x(float(accuracy[worst]))
    worst_marks: list[Mark] = [
        Line([(x, axis.y - 7), (x, axis.y + 7)], "line-weak"),
        Line([(axis.x(low), axis.y), (axis.x(high), axis.y)], "interval"),
        Dot(x, axis.y, 5.5, "dot-weak"),
    ]
    drawing.marks.append(Group(worst_marks, hover_text, images={"group": worst}))
    return drawing


def _class_ticks(names: Sequence[str], counts: ClassCounts, worst: int, axis: _Axis, alpha: float) -> list[Mark]:
    """A tick per class other than the worst, with its hover text; of many classes without."""
    accuracy = counts.accuracy
    if int(counts.present.sum()) > MAX_TITLES:  # one tick per position, as dark as the overlaid ticks of its classes
        places, many = np.unique(np.round(axis.x(accuracy[counts.present]), 1), return_counts=True)
        return [
            Line([(x, axis.y - 7), (x, axis.y + 7)], "tick", opacity=1 - 0.6**number)
            for x, number in zip(places.tolist(), many.tolist(), strict=True)
        ]
    marks: list[Mark] = []
    low, high = class_intervals(counts, alpha)
    for label in np.flatnonzero(counts.present).tolist():
        if label != worst:
            value, x = float(accuracy[label]), axis.x(float(accuracy[label]))
            ends, images = (float(low[label]), float(high[label])), int(counts.count[label])
            hover_text = f"{names[label]}: {formatting.measured(value, *ends, images, alpha)}"
            line = Line([(x, axis.y - 7), (x, axis.y + 7)], "tick")
            marks.append(Group([line], hover_text, (x - 3, axis.y - 9, 6, 18), {"group": label}))
    return marks


def _captions(captions: Sequence[tuple[float, str, str]], axis: _Axis, top: float) -> tuple[list[Mark], int]:
    """Names above their positions, each in the first line where it overlaps no other; and the number of lines."""
    placed: list[tuple[int, float, str, str]] = []
    taken: list[list[tuple[float, float]]] = []
    for share, name, style in captions:
        text = shorten(name, 36)
        half = width_of(text, 12, bold=True) / 2
        centre = min(max(axis.x(share), half), axis.width - half)
        free = (
            line
            for line, others in enumerate(taken)
            if all(centre + half + 10 < low or centre - half - 10 > high for low, high in others)
        )
        line = next(free, len(taken))
        if line == len(taken):
            taken.append([])
        taken[line].append((centre - half, centre + half))
        placed.append((line, centre, text, style))
    base = top + NAME_LINE * len(taken) - 4
    marks: list[Mark] = [
        Label(centre, base - NAME_LINE * line, text, style, 12, "middle", bold=style != "text-soft")
        for line, centre, text, style in placed
    ]
    return marks, len(taken)
