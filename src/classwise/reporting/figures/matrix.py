"""Heat maps of symmetric matrices in [-1, 1], such as correlations: blue is positive, orange negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from classwise.reporting.svg import Box, Drawing, Group, Label, Line, Mark, shorten, width_of

NAME_LETTERS = 22
MAX_SHADE = 0.55
"""Opacity of the darkest cell, on which text has a contrast of 4.5:1 in both themes."""


def matrix(title: str, names: Sequence[str], values: ArrayLike, what: str) -> Drawing:
    """Draw the lower triangle and the diagonal of a symmetric matrix; large cells are labelled with their values.

    Args:
        title: title of the figure.
        names: (n,) names of the rows and columns.
        values: (n, n) in [-1, 1]; NaN cells are blank.
        what: name of the quantity, for the hover texts.
    """
    numbers = np.asarray(values, dtype=np.float64)
    size = len(names)
    cell = float(np.clip(420 / size, 13, 38))
    short = [shorten(name, NAME_LETTERS) for name in names]
    room = max(width_of(name, 11) for name in short)
    left, top = room + 12, 0.72 * room + 40
    width, ground = left + size * cell + 0.72 * room, Box(left, top, size * cell, size * cell, "cell")
    drawing = Drawing.titled(max(width, width_of(title, 14)), top + size * cell + 6, title, ground)
    for row, name in enumerate(short):
        middle = cell * (row + 0.5)
        drawing.marks.append(Label(left - 7, top + middle + 4, name, "text", 11 if cell > 16 else 9.5, "end"))
        drawing.marks.append(Label(left + middle, top - 7, name, "text", 11 if cell > 16 else 9.5, angle=-45))
        for column in range(row + 1):
            value = float(numbers[row, column])
            if np.isfinite(value):
                place = (left + column * cell, top + row * cell, cell)
                hover_text = f"{names[row]}, {names[column]}: {what} {value:.2f}"
                drawing.marks.append(Group(_cell(value, place), hover_text))
    for step in range(size + 1):
        gap = cell * step
        drawing.marks.append(Line([(left + gap, top), (left + gap, top + size * cell)], "gap-line"))
        drawing.marks.append(Line([(left, top + gap), (left + size * cell, top + gap)], "gap-line"))
    return drawing


def _cell(value: float, place: tuple[float, float, float]) -> list[Mark]:
    x, y, cell = place
    shade = max(0.03, MAX_SHADE * min(abs(value), 1.0) ** 1.5)
    marks: list[Mark] = [Box(x, y, cell, cell, "heat" if value >= 0 else "heat-error", shade)]
    if cell >= 26:
        text = f"{value:.2f}".replace("-", "\u2212").replace("0.", ".", 1)
        marks.append(Label(x + cell / 2, y + cell / 2 + 4, text, "text", 10, "middle"))
    return marks
