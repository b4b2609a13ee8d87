"""Accuracy versus radius: a line per class, with the interval of the lowest class accuracy shaded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from classwise.auditing.curve.result import OVERALL, Curve
from classwise.reporting import formatting
from classwise.reporting.figures.axes import Axes, ticks
from classwise.reporting.figures.layout import Key, legend, title_lines
from classwise.reporting.svg import Drawing, Group, Line, Mark, shorten
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


def radius_curves(curve: Curve, *, width: float | None = None) -> Drawing:
    """Draw accuracy versus radius: a line per class and a dashed line over all images.

    The lines of the worst and the best class are highlighted. The shaded area is the interval of the lowest class
    accuracy at each radius, whichever class it is there.

    Args:
        curve: the robustness curve.
        width: width of the drawing in pixels; None: that of a page.
    """
    title, width = "Accuracy versus radius, percent", width or WIDTH
    lines: Mapping[str, pd.DataFrame] = {str(name): rows for name, rows in curve.table().groupby("class", sort=False)}
    classes = [str(name) for name in curve.summary.index[:-1]]
    worst, best = classes[0], classes[-1]
    styles = {worst: "line-weak", OVERALL: "line-overall"}
    if best != worst:
        styles[best] = "line-good"
    marks, top = title_lines(title, width)
    keys, top = _legend(curve, styles, top, width)
    axes = Axes(LEFT, top + 6, width - RIGHT, top + 6 + PLOT, (0.0, curve.highest), (0.0, 1.0))
    levels = [(share, f"{100 * share:.0f}") for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    factor, unit = radius_unit(curve)
    most = curve.highest * factor
    numbers = [(tick / factor, f"{tick:.4g}") for tick in ticks(0.0, most, 6) if tick <= most * (1 + 1e-9)]
    drawing = Drawing(width, axes.bottom + BOTTOM, title, [*marks, *keys, *axes.grid(levels, numbers, unit)])
    radii = lines[worst]["radius"].to_numpy()
    low, high = zip(*(lowest_interval(curve.counts(float(radius)), curve.alpha) for radius in radii), strict=True)
    band = [*axes.path(radii, high), *reversed(axes.path(radii, low))]
    drawing.marks.append(Line(band, "gap", closed=True, opacity=0.35))
    shown = [*classes[1:-1], best, worst] if len(classes) > 1 else [worst]
    for name in [*shown, OVERALL]:
        mean = _text(curve, float(curve.summary["mean"][name]))
        path = axes.path(lines[name]["radius"], lines[name]["accuracy"])
        mark = Line(path, styles.get(name, "line"))
        drawing.marks.append(Group([mark], f"{name}: mean radius {mean}"))
    return drawing


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
