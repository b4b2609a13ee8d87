"""Accuracy versus radius: a line per class, with the interval of the lowest class accuracy shaded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from classwise.auditing.curve.result import OVERALL, Curve
from classwise.reporting import formatting
from classwise.reporting.figures.curves import ticks
from classwise.reporting.figures.layout import NARROW, Key, legend, title_lines
from classwise.reporting.svg import Drawing, Group, Label, Line, Mark, shorten
from classwise.stats.intervals import lowest_interval

WIDTH, PLOT = 640.0, 290.0
LEFT, RIGHT, BOTTOM = 40.0, 12.0, 40.0
LEVELS = 255
MAX_LEVELS = 64
"""Linf radii up to this number of grey levels are printed in units of 1/255."""


def radius_unit(curve: Curve) -> tuple[float, str]:
    """Factor by which radii are multiplied in print, and the label of the radius axis."""
    if curve.meta.norm == "Linf" and curve.highest * LEVELS <= MAX_LEVELS:
        return float(LEVELS), "Linf radius, in 1/255"
    return 1.0, f"{curve.meta.norm} radius"


def radius_curves(curve: Curve, *, narrow: bool = False) -> Drawing:
    """Draw accuracy versus radius: a line per class and a dashed line over all images.

    The lines of the worst and the best class are highlighted. The shaded area is the interval of the lowest class
    accuracy at each radius, whichever class it is there.

    Args:
        curve: the robustness curve.
        narrow: draw for narrow screens.
    """
    title, width = "Accuracy versus radius, percent", NARROW if narrow else WIDTH
    lines: Mapping[str, pd.DataFrame] = {str(name): rows for name, rows in curve.table().groupby("class", sort=False)}
    classes = [str(name) for name in curve.summary.index[:-1]]
    worst, best = classes[0], classes[-1]
    styles = {worst: "line-weak", OVERALL: "line-overall"}
    if best != worst:
        styles[best] = "line-good"
    marks, top = title_lines(title, width)
    keys, top = _legend(curve, styles, top, width)
    axes = _Axes(curve, top + 6, width)
    drawing = Drawing(width, axes.bottom + BOTTOM, title, [*marks, *keys, *axes.grid()])
    radii = lines[worst]["radius"].to_numpy()
    low, high = zip(*(lowest_interval(curve.counts(float(radius)), curve.alpha) for radius in radii), strict=True)
    band = pd.DataFrame({"radius": radii, "low": low, "high": high})
    upper, lower = axes.path(band, "high"), axes.path(band, "low")
    drawing.marks.append(Line([*upper, *reversed(lower)], "gap", closed=True, opacity=0.35))
    shown = [*classes[1:-1], best, worst] if len(classes) > 1 else [worst]
    for name in [*shown, OVERALL]:
        mean = _text(curve, float(curve.summary["mean"][name]))
        mark = Line(axes.path(lines[name], "accuracy"), styles.get(name, "line"))
        drawing.marks.append(Group([mark], f"{name}: mean radius {mean}"))
    return drawing


class _Axes:
    """Transform from radii and accuracies to pixels, for a plot that begins at ``top``."""

    def __init__(self, curve: Curve, top: float, width: float) -> None:
        self.factor, self.unit = radius_unit(curve)
        self.last, self.bottom, self.width = curve.highest, top + PLOT, width

    def x(self, radius: float) -> float:
        return LEFT + (self.width - LEFT - RIGHT) * radius / self.last

    def y(self, share: float) -> float:
        return self.bottom - PLOT * share

    def path(self, rows: pd.DataFrame, column: str) -> list[tuple[float, float]]:
        pairs = zip(rows["radius"].to_numpy(), rows[column].to_numpy(), strict=True)
        return [(self.x(float(radius)), self.y(float(share))) for radius, share in pairs]

    def grid(self) -> list[Mark]:
        marks: list[Mark] = []
        for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
            y = self.y(share)
            marks.append(Line([(LEFT, y), (self.width - RIGHT, y)], "rule"))
            marks.append(Label(LEFT - 6, y + 4, f"{100 * share:.0f}", "text-soft", 10.5, "end"))
        for tick in ticks(0.0, self.last * self.factor, 6):
            if tick <= self.last * self.factor * (1 + 1e-9):
                x = self.x(tick / self.factor)
                marks.append(Label(x, self.bottom + 16, f"{tick:.4g}", "text-soft", 10.5, "middle"))
        middle = (LEFT + self.width - RIGHT) / 2
        marks.append(Label(middle, self.bottom + BOTTOM - 6, self.unit, "text-soft", 10.5, "middle"))
        return marks


def _text(curve: Curve, radius: float) -> str:
    factor = radius_unit(curve)[0]
    return f"{radius * factor:.3g}" if np.isfinite(radius) else f"over {curve.highest * factor:.3g}"


def _legend(curve: Curve, styles: Mapping[str, str], top: float, width: float) -> tuple[list[Mark], float]:
    """Legend of the highlighted lines, largest mean radius first."""
    colours = {"line-weak": "text-weak", "line-good": "text-good", "line-overall": "text"}
    means = curve.summary["mean"]
    order = sorted(styles, key=lambda name: -float(means[name]))
    keys = [
        Key(
            f"{shorten(name, 28)}: mean radius {_text(curve, float(means[name]))}",
            styles[name],
            text=colours[styles[name]],
            bold=True,
        )
        for name in order
    ]
    band = Key(f"lowest class, {formatting.level(curve.alpha)}", "gap", 0.35)
    return legend([*keys, band], 0, top, width)
