"""Training curves: a line per class, with the gap between the best and the worst class shaded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from classwise.reporting import formatting
from classwise.reporting.figures.layout import Key, legend, title_lines
from classwise.reporting.svg import Drawing, Group, Label, Line, Mark, shorten
from classwise.stats.counts import FloatArray

WIDTH, PLOT = 336.0, 200.0
"""Width of a panel, of which three fit side by side on a page and one on a narrow screen, and height of its plot."""
LEFT, RIGHT, BOTTOM = 40.0, 10.0, 34.0
NEGLIGIBLE = 1e-10
"""Ranges below this are treated as rounding errors of equal values."""
MAX_POINTS = 4000
"""Maximum number of points (classes x epochs) up to which all class lines are drawn."""


def class_table(epochs: pd.DataFrame, split: str, measure: str) -> pd.DataFrame:
    """One measure on one split: a row per epoch (from 1), a column per label; empty if it was not measured."""
    rows = epochs[(epochs["split"] == split) & epochs[measure].notna()] if measure in epochs else epochs.iloc[:0]
    if rows.empty:
        return pd.DataFrame()
    steps, row = np.unique(rows["epoch"].to_numpy(), return_inverse=True)
    labels, column = np.unique(rows["label"].to_numpy(), return_inverse=True)
    table = np.full((len(steps), len(labels)), np.nan)
    table[row, column] = rows[measure].to_numpy(dtype=np.float64)
    return pd.DataFrame(table, index=steps + 1, columns=labels)


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
    last = values.iloc[-1]
    worst, best = int(str(last.idxmin())), int(str(last.idxmax()))
    ends = [(float(last[best]), names[best], "line-good")] if best != worst else []
    ends.append((float(last[worst]), names[worst], "line-weak"))
    if overall is not None:
        ends.append((float(overall[-1]), "overall", "line-overall"))
    marks, top = title_lines(title, WIDTH)
    keys, top = _legend(ends, top, share=share)
    axes = _Axes(values, share, top + 6)
    drawing = Drawing(WIDTH, axes.bottom + BOTTOM, title, [*marks, *keys, *axes.grid()])
    if chosen is not None:
        x = axes.x(chosen)
        drawing.marks.append(
            Group([Line([(x, axes.top), (x, axes.bottom)], "guide")], f"epoch {chosen}: selected weights")
        )
    low, high = values.min(axis=1).to_numpy(), values.max(axis=1).to_numpy()
    steps = values.index.to_numpy()
    band = axes.path(steps, high) + axes.path(steps[::-1], low[::-1])
    drawing.marks.append(Line(band, "gap", closed=True, opacity=0.35))
    labels = [int(str(label)) for label in values.columns if values.size <= MAX_POINTS]
    for label in [*(label for label in labels if label not in {worst, best}), best, worst]:
        style = {worst: "line-weak", best: "line-good"}.get(label, "line")
        column = values[label].to_numpy()
        note = f" {notes[label]}" if notes else ""
        hover_text = f"{names[label]}: {_text(float(column[-1]), share=share)} in epoch {steps[-1]}{note}"
        drawing.marks.append(Group([Line(axes.path(steps, column), style)], hover_text))
    if overall is not None:
        line = Line(axes.path(steps, overall), "line-overall")
        hover_text = f"overall: {_text(float(overall[-1]), share=share)} in epoch {steps[-1]}"
        drawing.marks.append(Group([line], hover_text))
    return drawing


def _legend(ends: Sequence[tuple[float, str, str]], top: float, *, share: bool) -> tuple[list[Mark], float]:
    """Names and last values of the highlighted lines, highest first, one below the other."""
    texts = {"line-good": "text-good", "line-weak": "text-weak", "line-overall": "text"}
    marks: list[Mark] = []
    for value, name, style in sorted(ends, key=lambda end: -end[0]):
        text = f"{shorten(name, 34)} {_text(value, share=share)}"
        keys, top = legend([Key(text, style, text=texts[style], bold=True)], 0, top, WIDTH)
        marks += keys
    return marks, top


def _text(value: float, *, share: bool) -> str:
    return formatting.percent(value) if share else f"{value:.3g}"


class _Axes:
    """Transform from epochs and values to pixels, for a plot that begins at ``top``."""

    def __init__(self, values: pd.DataFrame, share: bool, top: float) -> None:
        lowest, highest = float(np.nanmin(values.to_numpy())), float(np.nanmax(values.to_numpy()))
        self.share, self.top, self.bottom = share, top, top + PLOT
        self.first, self.last = int(values.index[0]), int(values.index[-1])
        self.ticks = ticks(0.0 if share else lowest, highest)
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def x(self, epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (epoch - self.first) / max(self.last - self.first, 1)

    def y(self, value: float) -> float:
        return self.bottom - PLOT * (value - self.low) / (self.high - self.low)

    def path(self, epochs: Sequence[int] | FloatArray, values: FloatArray) -> list[tuple[float, float]]:
        pairs = zip(epochs, values, strict=True)
        points = [(self.x(float(epoch)), self.y(float(value))) for epoch, value in pairs if not math.isnan(value)]
        return points if len(points) != 1 else [points[0], (points[0][0] + 3, points[0][1])]

    def grid(self) -> list[Mark]:
        marks: list[Mark] = []
        for tick in self.ticks:
            y = self.y(tick)
            text = f"{100 * tick:.0f}" if self.share else f"{tick:.4g}"
            line = Line([(LEFT, y), (WIDTH - RIGHT, y)], "rule")
            marks += [line, Label(LEFT - 6, y + 4, text, "text-soft", 10.5, "end")]
        epochs = sorted({self.first, round((self.first + self.last) / 2), self.last})
        base = self.bottom + 16
        marks += [Label(self.x(epoch), base, str(epoch), "text-soft", 10.5, "middle") for epoch in epochs]
        middle = (LEFT + WIDTH - RIGHT) / 2
        marks.append(Label(middle, self.bottom + BOTTOM - 4, "epoch", "text-soft", 10.5, "middle"))
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
