"""Training curves: a line per class, with the gap between the best and the worst class shaded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from classwise.reporting import formatting
from classwise.reporting.figures.axes import Axes, ticks
from classwise.reporting.figures.layout import Key, legend, title_lines
from classwise.reporting.svg import Drawing, Group, Line, Mark, shorten
from classwise.stats.counts import FloatArray

WIDTH, PLOT = 336.0, 200.0
"""Width of a panel, of which three fit side by side on a page and one on a narrow screen, and height of its plot."""
LEFT, RIGHT, BOTTOM = 40.0, 10.0, 34.0
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
    low, high = values.min(axis=1).to_numpy(), values.max(axis=1).to_numpy()
    steps = values.index.to_numpy()
    levels, span = ticks(0.0 if share else np.nanmin(low), np.nanmax(high)), (int(steps[0]), int(steps[-1]))
    axes = Axes(LEFT, top + 6, WIDTH - RIGHT, top + 6 + PLOT, span, (levels[0], levels[-1]))
    texts = [(level, f"{100 * level:.0f}" if share else f"{level:.4g}") for level in levels]
    numbers = [(epoch, str(epoch)) for epoch in sorted({*span, round(sum(span) / 2)})]
    grid = axes.grid(texts, numbers, "epoch", below=30)
    drawing = Drawing(WIDTH, axes.bottom + BOTTOM, title, [*marks, *keys, *grid])
    if chosen is not None:
        x = axes.x(chosen)
        drawing.marks.append(
            Group([Line([(x, axes.top), (x, axes.bottom)], "guide")], f"epoch {chosen}: selected weights")
        )
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
