"""Both panels of cfa23 Figure 1: points of the toy model, and accuracy of each class over the weight."""

from __future__ import annotations

import numpy as np

from classwise.core.rng import CounterRNG
from classwise.papers.theory.toy import EASY, HARD, Sample, ToyModel
from classwise.reporting.figures.curves import ticks
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.svg import Dot, Drawing, Group, Label, Line, Mark
from classwise.stats.counts import FloatArray

WIDTH, HEIGHT = 400.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 42.0, 12.0, 34.0, 42.0
_JITTER = 0.5
"""Width of the horizontal jitter around the values -1 and +1 of the robust feature, so that points are visible."""


def scatter(sample: Sample, title: str = "Points of the toy model") -> Drawing:
    """Scatter plot of the first weak feature over the robust feature, coloured by class."""
    import torch

    drawing = Drawing(WIDTH, HEIGHT, title)
    drawing.marks.append(Label(0, 14, title, "text", 13, bold=True))
    weak = sample.x[:, 1]
    low, high = float(weak.min()), float(weak.max())

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value + 1.6) / 3.2

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    for tick in ticks(low, high):
        if low <= tick <= high:
            drawing.marks.append(Line([(LEFT, y(tick)), (WIDTH - RIGHT, y(tick))], "rule"))
            drawing.marks.append(Label(LEFT - 6, y(tick) + 4, f"{tick:g}", "text-soft", 10.5, "end"))
    for value in (-1, 1):
        drawing.marks.append(Label(x(value), HEIGHT - BOTTOM + 16, f"{value:+d}", "text-soft", 10.5, "middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawing.marks.append(Label(middle, HEIGHT - 8, "robust feature (jittered)", "text-soft", 10.5, "middle"))
    shift = CounterRNG(0, "jitter").uniform(torch.arange(len(weak))).numpy() - 0.5
    for label, colour, name in ((EASY, "dot-main", "+1"), (HARD, "dot-weak", "−1")):
        rows = np.flatnonzero(sample.y == label)
        marks: list[Mark] = [
            Dot(x(float(sample.x[row, 0]) + _JITTER * float(shift[row])), y(float(weak[row])), 2.4, colour)
            for row in rows
        ]
        drawing.marks.append(Group(marks, f"class {name}: {len(rows)} points"))
    return drawing


def accuracy_curves(model: ToyModel, weights: FloatArray, title: str = "Accuracy over the weight w") -> Drawing:
    """Line chart of clean (dashed) and robust accuracy at 2 eta (solid) of both classes over the weight."""
    series = []
    for label, name, colour in ((EASY, "+1", "main"), (HARD, "−1", "weak")):
        clean = model.accuracy(label, weights)
        robust = model.accuracy(label, weights, model.evaluation_radius)
        series.append(Series(f"{name} clean", weights.tolist(), clean.tolist(), f"guide-{colour}"))
        style = "stroke-main" if label == EASY else "line-weak"
        series.append(Series(f"{name} robust", weights.tolist(), robust.tolist(), style))
    return line_chart(title, series, "w: weight of the robust feature")
