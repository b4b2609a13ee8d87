"""Strip plot of the class accuracies between 0 and 100 %, with the interval of the worst class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from classwise.reporting import formatting
from classwise.reporting.svg import Dot, Drawing, Group, Label, Line, Mark, shorten, width_of
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals
from classwise.stats.metrics import overall_micro, worst_class

WIDTH, HEIGHT = 1040.0, 78.0
MARGIN, AXIS = 8.0, 44.0
MAX_TITLES = 150
"""Maximum number of classes whose ticks have hover texts."""


def class_strip(names: Sequence[str], counts: ClassCounts, under: str, alpha: float = 0.05) -> Drawing:
    """Draw one axis from 0 to 100 %: a tick per class, the overall accuracy, the worst class with its interval.

    Args:
        names: names of the C classes.
        counts: images and correct predictions per class.
        under: condition of the accuracy for the text alternative of the figure, such as ``under every attack``.
        alpha: significance level; intervals have coverage 1 - alpha.
    """
    accuracy, (low, high) = counts.accuracy, class_intervals(counts, alpha)
    worst = worst_class(accuracy).label
    best = int(np.nanargmax(accuracy))
    drawing = Drawing(WIDTH, HEIGHT, f"Accuracy per class {under}, from 0 to 100 %")
    marks = drawing.marks
    marks.append(Line([(_x(0), AXIS), (_x(1), AXIS)], "rule"))
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        text = f"{100 * tick:.0f}"
        marks.append(Label(_x(tick), AXIS + 27, text + ("\u00a0%" if tick == 1 else ""), "text-soft", 10.5, "middle"))
    crowded = int(counts.present.sum()) > MAX_TITLES
    if crowded:  # one tick per position, as dark as the overlaid ticks of its classes
        places, many = np.unique(np.round(_x(accuracy[counts.present]), 1), return_counts=True)
        for x, number in zip(places.tolist(), many.tolist(), strict=True):
            marks.append(Line([(x, AXIS - 7), (x, AXIS + 7)], "tick", opacity=1 - 0.6**number))
    for label in [worst] if crowded else np.flatnonzero(counts.present).tolist():
        value = float(accuracy[label])
        hover_text = formatting.measured(value, float(low[label]), float(high[label]), int(counts.count[label]), alpha)
        line = Line([(_x(value), AXIS - 7), (_x(value), AXIS + 7)], "line-weak" if label == worst else "tick")
        marks.append(Group([line], f"{names[label]}: {hover_text}", (_x(value) - 3, AXIS - 9, 6, 18)))
    overall = overall_micro(counts)
    marks.append(Line([(_x(overall), AXIS - 14), (_x(overall), AXIS + 12)], "guide"))
    marks.append(Line([(_x(float(low[worst])), AXIS), (_x(float(high[worst])), AXIS)], "interval"))
    marks.append(Dot(_x(float(accuracy[worst])), AXIS, 5.5, "dot-weak"))
    captions = [
        (_x(float(accuracy[worst])), names[worst], "text-weak"),
        (_x(overall), "overall", "text-soft"),
        (_x(float(accuracy[best])), names[best], "text-good"),
    ]
    marks.extend(_captions(captions))
    return drawing


def _x(share: Any) -> Any:
    """Position of a fraction (float or array) on the axis, in pixels."""
    return MARGIN + share * (WIDTH - 2 * MARGIN - 12)


def _captions(captions: Sequence[tuple[float, str, str]]) -> list[Mark]:
    """Names above their positions; a name that would overlap the previous one is omitted."""
    marks: list[Mark] = []
    free = 0.0
    for x, name, style in captions:
        text = shorten(name, 22)
        half = width_of(text, 13) / 2
        centre = min(max(x, half), WIDTH - half)
        if centre - half >= free:
            marks.append(Label(centre, AXIS - 22, text, style, 12, "middle", bold=style != "text-soft"))
            free = centre + half + 10
    return marks
