"""Training curves: a line per class, with the gap between the best and the worst class shaded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from classwise.reporting import formatting
from classwise.reporting.svg import Drawing, Group, Label, Line, Mark, shorten
from classwise.stats.counts import FloatArray

WIDTH, HEIGHT = 512.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 122.0, 34.0, 34.0
NEGLIGIBLE = 1e-10
"""Ranges below this are treated as rounding errors of equal values."""
MAX_POINTS = 4000
"""Maximum number of points (classes x epochs) up to which all class lines are drawn."""


def class_table(epochs: pd.DataFrame, split: str, measure: str) -> pd.DataFrame:
    """One measure on one split: a row per epoch (from 1), a column per label; empty if it was not measured."""
    rows = epochs[(epochs["split"] == split) & epochs[measure].notna()] if measure in epochs else epochs.iloc[:0]
    if rows.empty:
        return pd.DataFrame()
    table = rows.pivot_table(index="epoch", columns="label", values=measure)
    return table.set_axis(table.index + 1, axis=0)


def class_curves(
    values: pd.DataFrame,
    names: Sequence[str],
    title: str,
    *,
    overall: FloatArray | None = None,
    notes: Sequence[str] = (),
    chosen: int | None = None,
    share: bool = True,
) -> Drawing:
    """Draw a line per class; the worst and the best class of the last epoch are highlighted.

    Args:
        values: epochs x classes, from `class_table`.
        names: class names by label.
        title: title of the figure.
        overall: (epochs,) values over all images, drawn dashed.
        notes: a text per class, appended to the hover text of its line.
        chosen: the epoch of the selected weights, marked by a vertical line.
        share: values are fractions, shown in percent from 0; otherwise the axis is fitted to them.
    """
    drawing = Drawing(WIDTH, HEIGHT, title)
    drawing.marks.append(Label(0, 14, title, "text", 13, bold=True))
    axes = _Axes(values, share)
    drawing.marks.extend(axes.grid())
    if chosen is not None:
        x = axes.x(chosen)
        drawing.marks.append(
            Group([Line([(x, TOP), (x, HEIGHT - BOTTOM)], "guide")], f"epoch {chosen}: selected weights")
        )
    low, high = values.min(axis=1).to_numpy(), values.max(axis=1).to_numpy()
    steps = values.index.to_numpy()
    drawing.marks.append(
        Line(axes.path(steps, high) + axes.path(steps[::-1], low[::-1]), "gap", closed=True, opacity=0.35)
    )
    last = values.iloc[-1]
    worst, best = int(str(last.idxmin())), int(str(last.idxmax()))
    labels = [int(str(label)) for label in values.columns if values.size <= MAX_POINTS]
    shown = [label for label in labels if label not in {worst, best}]
    for label in [*shown, best, worst]:
        style = {worst: "line-weak", best: "line-good"}.get(label, "line")
        column = values[label].to_numpy()
        note = f" {notes[label]}" if notes else ""
        hover_text = f"{names[label]}: {axes.text(float(column[-1]))} in epoch {steps[-1]}{note}"
        drawing.marks.append(Group([Line(axes.path(steps, column), style)], hover_text))
    ends = [(float(last[best]), names[best], "text-good"), (float(last[worst]), names[worst], "text-weak")]
    if overall is not None:
        line = Line(axes.path(steps, overall), "line-overall")
        drawing.marks.append(Group([line], f"overall: {axes.text(float(overall[-1]))} in epoch {steps[-1]}"))
        ends.append((float(overall[-1]), "overall", "text"))
    drawing.marks.extend(axes.endings(ends))
    return drawing


class _Axes:
    """Transform from epochs and values to pixels."""

    def __init__(self, values: pd.DataFrame, share: bool) -> None:
        lowest, highest = float(np.nanmin(values.to_numpy())), float(np.nanmax(values.to_numpy()))
        self.share = share
        self.first, self.last = int(values.index[0]), int(values.index[-1])
        self.ticks = ticks(0.0 if share else lowest, highest)
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def x(self, epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (epoch - self.first) / max(self.last - self.first, 1)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.low) / (self.high - self.low)

    def path(self, epochs: Sequence[int] | FloatArray, values: FloatArray) -> list[tuple[float, float]]:
        pairs = zip(epochs, values, strict=True)
        points = [(self.x(float(epoch)), self.y(float(value))) for epoch, value in pairs if not math.isnan(value)]
        return points if len(points) != 1 else [points[0], (points[0][0] + 3, points[0][1])]

    def text(self, value: float) -> str:
        return formatting.percent(value) if self.share else f"{value:.3g}"

    def grid(self) -> list[Mark]:
        marks: list[Mark] = []
        for tick in self.ticks:
            y = self.y(tick)
            text = f"{100 * tick:.0f}" if self.share else f"{tick:.4g}"
            line = Line([(LEFT, y), (WIDTH - RIGHT, y)], "rule")
            marks += [line, Label(LEFT - 6, y + 4, text, "text-soft", 10.5, "end")]
        epochs = sorted({self.first, round((self.first + self.last) / 2), self.last})
        base = HEIGHT - BOTTOM + 16
        marks += [Label(self.x(epoch), base, str(epoch), "text-soft", 10.5, "middle") for epoch in epochs]
        middle = (LEFT + WIDTH - RIGHT) / 2
        marks.append(Label(middle, HEIGHT - 4, "epoch", "text-soft", 10.5, "middle"))
        return marks

    def endings(self, ends: Sequence[tuple[float, str, str]]) -> list[Mark]:
        """Names at the right ends of lines, shifted apart where they would overlap."""
        marks: list[Mark] = []
        lowest = -math.inf
        for value, name, style in sorted(ends, key=lambda end: -end[0]):
            y = max(self.y(value) + 4, lowest + 13)
            lowest = y
            text = f"{shorten(name, 11)} {formatting.bare_percent(value) if self.share else self.text(value)}"
            marks.append(Label(WIDTH - RIGHT + 7, y, text, style, 11, bold=True))
        return marks


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Axis ticks that span [low, high]: about ``most`` steps of 1, 2, 2.5 or 5 times a power of ten."""
    if not high - low > NEGLIGIBLE:
        high = low + (abs(low) if abs(low) > NEGLIGIBLE else 1.0)
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * place, 12) for place in range(first, last + 1)]
