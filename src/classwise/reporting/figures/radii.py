"""Accuracy versus radius: a line per class, with the interval of the worst class shaded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from classwise.auditing.curve.result import OVERALL, Curve
from classwise.reporting import formatting
from classwise.reporting.figures.curves import ticks
from classwise.reporting.svg import Box, Drawing, Group, Label, Line, Mark, shorten

WIDTH, HEIGHT = 640.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 150.0, 34.0, 40.0
LEVELS = 255
MAX_LEVELS = 64
"""Linf radii up to this number of grey levels are printed in units of 1/255."""


def radius_unit(curve: Curve) -> tuple[float, str]:
    """Factor by which radii are multiplied in print, and the label of the radius axis."""
    if curve.meta.norm == "Linf" and curve.highest * LEVELS <= MAX_LEVELS:
        return float(LEVELS), "Linf radius, in 1/255"
    return 1.0, f"{curve.meta.norm} radius"


def radius_curves(curve: Curve) -> Drawing:
    """Draw accuracy versus radius: a line per class and a dashed line over all images.

    The lines of the worst and the best class are highlighted.
    """
    title = "Accuracy versus radius, percent"
    drawing = Drawing(WIDTH, HEIGHT, title)
    drawing.marks.append(Label(0, 14, title, "text", 13, bold=True))
    axes = _Axes(curve)
    drawing.marks.extend(axes.grid())
    lines: Mapping[str, pd.DataFrame] = {str(name): rows for name, rows in curve.table().groupby("class", sort=False)}
    classes = [str(name) for name in curve.summary.index[:-1]]
    worst, best = classes[0], classes[-1]
    band = lines[worst]
    upper, lower = axes.path(band, "high"), axes.path(band, "low")
    drawing.marks.append(Line([*upper, *reversed(lower)], "gap", closed=True, opacity=0.35))
    shown = [*classes[1:-1], best, worst] if len(classes) > 1 else [worst]
    styles = {worst: "line-weak", OVERALL: "line-overall"}
    if best != worst:
        styles[best] = "line-good"
    for name in [*shown, OVERALL]:
        mean = axes.text(float(curve.summary["mean"][name]))
        mark = Line(axes.path(lines[name], "accuracy"), styles.get(name, "line"))
        drawing.marks.append(Group([mark], f"{name}: mean radius {mean}"))
    drawing.marks.extend(_legend(curve, axes, styles))
    return drawing


class _Axes:
    """Transform from radii and accuracies to pixels."""

    def __init__(self, curve: Curve) -> None:
        self.factor, self.unit = radius_unit(curve)
        self.last = curve.highest

    def x(self, radius: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * radius / self.last

    def y(self, share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def path(self, rows: pd.DataFrame, column: str) -> list[tuple[float, float]]:
        pairs = zip(rows["radius"].to_numpy(), rows[column].to_numpy(), strict=True)
        return [(self.x(float(radius)), self.y(float(share))) for radius, share in pairs]

    def text(self, radius: float) -> str:
        return f"{radius * self.factor:.3g}" if np.isfinite(radius) else f"over {self.last * self.factor:.3g}"

    def grid(self) -> list[Mark]:
        marks: list[Mark] = []
        for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
            y = self.y(share)
            marks.append(Line([(LEFT, y), (WIDTH - RIGHT, y)], "rule"))
            marks.append(Label(LEFT - 6, y + 4, f"{100 * share:.0f}", "text-soft", 10.5, "end"))
        for tick in ticks(0.0, self.last * self.factor, 6):
            if tick <= self.last * self.factor * (1 + 1e-9):
                x = self.x(tick / self.factor)
                marks.append(Label(x, HEIGHT - BOTTOM + 16, f"{tick:.4g}", "text-soft", 10.5, "middle"))
        middle = (LEFT + WIDTH - RIGHT) / 2
        marks.append(Label(middle, HEIGHT - 6, self.unit, "text-soft", 10.5, "middle"))
        return marks


def _legend(curve: Curve, axes: _Axes, styles: Mapping[str, str]) -> list[Mark]:
    """Legend of the highlighted lines, largest mean radius first."""
    left, marks = WIDTH - RIGHT + 12, list[Mark]()
    marks.append(Label(left, TOP + 4, "mean radius", "text-soft", 10.5))
    colours = {"line-weak": "text-weak", "line-good": "text-good", "line-overall": "text"}
    means = curve.summary["mean"]
    order = sorted(styles, key=lambda name: -float(means[name]))
    for place, name in enumerate(order):
        y = TOP + 22 + 17 * place
        text = f"{shorten(name, 12)} {axes.text(float(means[name]))}"
        marks.append(Line([(left, y - 4), (left + 16, y - 4)], styles[name]))
        marks.append(Label(left + 22, y, text, colours[styles[name]], 11, bold=True))
    y = TOP + 22 + 17 * len(order)
    marks.append(Box(left, y - 9, 16, 9, "gap", 0.35))
    marks.append(Label(left + 22, y, f"{formatting.level(curve.alpha)} interval", "text-soft", 10.5))
    return marks
