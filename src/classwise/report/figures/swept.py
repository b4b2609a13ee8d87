"""Lines over a number that is not the epoch: a radius, a weight, a setting that is swept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from classwise.report import wording
from classwise.report.drawing import Dot, Drawing, Group, Label, Line, Mark, shorten
from classwise.report.figures.curves import ticks
from classwise.stats.counts import FloatArray

WIDTH, HEIGHT = 512.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 42.0, 122.0, 34.0, 42.0


@dataclass(frozen=True)
class Series:
    """A line: its name, its values (fractions) at each place, and its style of `inks.STYLES`; ``ends`` names it."""

    name: str
    values: FloatArray
    style: str = "line"
    text: str = "text-soft"
    named: bool = False
    dots: str = ""


def line_chart(title: str, places: FloatArray, series: Sequence[Series], what: str) -> Drawing:
    """Fractions, in percent, over places.

    Args:
        title: of the figure.
        places: (P,) ascending numbers.
        series: each with (P,) fractions; later ones lie above.
        what: the places are, with their unit; below the axis.
    """
    drawing = Drawing(WIDTH, HEIGHT, title)
    drawing.marks.append(Label(0, 14, title, "text", 13, bold=True))
    axes = _Axes(places)
    drawing.marks.extend(axes.grid(what))
    ends: list[tuple[float, str, str]] = []
    for one in series:
        points = [
            (axes.x(float(p)), axes.y(float(v))) for p, v in zip(places, one.values, strict=True) if v == v
        ]  # NaN
        if not points:
            continue
        path = points if len(points) > 1 else [points[0], (points[0][0] + 3, points[0][1])]
        marks: list[Mark] = [Line(path, one.style)]
        if one.dots:
            marks += [Dot(x, y, 2.6, one.dots) for x, y in points]
        first, last = (wording.bare_percent(float(one.values[place])) for place in (0, -1))
        drawing.marks.append(Group(marks, f"{one.name}: from {first} to {last} %"))
        if one.named:
            ends.append((float(one.values[-1]), one.name, one.text))
    lowest = -math.inf
    for value, name, style in sorted(ends, key=lambda end: -end[0]):
        y = max(axes.y(value) + 4, lowest + 13)
        lowest = y
        drawing.marks.append(
            Label(WIDTH - RIGHT + 7, y, f"{shorten(name, 13)} {wording.bare_percent(value)}", style, 11, bold=True)
        )
    return drawing


def class_lines(
    title: str, places: FloatArray, accuracy: FloatArray, names: Sequence[str], overall: FloatArray, what: str
) -> Drawing:
    """A line for each class, (P, C) fractions; the lowest and the highest at the last place stand out."""
    last = accuracy[-1]
    worst, best = int(last.argmin()), int(last.argmax())
    styles = {worst: ("line-weak", "text-weak", "dot-weak"), best: ("line-good", "text-good", "dot-good")}
    order = [label for label in range(len(names)) if label not in styles] + [best, worst]
    series = []
    for label in order:
        line, text, dots = styles.get(label, ("line", "text-soft", ""))
        series.append(Series(names[label], accuracy[:, label], line, text, label in styles, dots))
    series.append(Series("overall", overall, "line-overall", "text", named=True))
    return line_chart(title, places, series, what)


class _Axes:
    """Where places and fractions lie on the canvas."""

    def __init__(self, places: FloatArray) -> None:
        self.low, self.high = float(places[0]), float(places[-1])

    def x(self, place: float) -> float:
        span = self.high - self.low or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * (place - self.low) / span

    def y(self, share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def grid(self, what: str) -> list[Mark]:
        marks: list[Mark] = []
        for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
            y = self.y(share)
            marks.append(Line([(LEFT, y), (WIDTH - RIGHT, y)], "rule"))
            marks.append(Label(LEFT - 6, y + 4, f"{100 * share:.0f}", "text-soft", 10.5, "end"))
        inside = [tick for tick in ticks(self.low, self.high, 6) if self.low <= tick <= self.high * (1 + 1e-9)]
        base = HEIGHT - BOTTOM + 16
        marks += [Label(self.x(tick), base, f"{tick:.4g}", "text-soft", 10.5, "middle") for tick in inside]
        marks.append(Label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, what, "text-soft", 10.5, "middle"))
        return marks
