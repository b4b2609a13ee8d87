"""Axes of plots: places of values, grid lines, and the numbers and labels beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from classwise.reporting.svg import Label, Line, Mark, Point, width_of

NEGLIGIBLE = 1e-10
"""Ranges below this are treated as rounding errors of equal values."""
SMALL = 10.5
"""Size of the numbers and labels of an axis, in pixels."""


class Axes(NamedTuple):
    """The rectangle of a plot, in pixels, and the values at its edges.

    Attributes:
        left: left edge.
        top: upper edge.
        right: right edge.
        bottom: lower edge.
        across: values at the left and the right edge.
        upward: values at the lower and the upper edge.
    """

    left: float
    top: float
    right: float
    bottom: float
    across: tuple[float, float]
    upward: tuple[float, float]

    def x(self, value: float) -> float:
        """Horizontal place of a value; the left edge if the two edges have the same value."""
        first, last = self.across
        return self.left + (self.right - self.left) * (value - first) / ((last - first) or 1.0)

    def y(self, value: float) -> float:
        """Vertical place of a value."""
        low, high = self.upward
        return self.bottom - (self.bottom - self.top) * (value - low) / (high - low)

    def place(self, x: float, y: float) -> Point:
        """Place of a pair of values."""
        return self.x(x), self.y(y)

    def path(self, across: Iterable[float], upward: Iterable[float]) -> list[Point]:
        """Places of pairs of values without those that are not finite; a single place becomes a short line."""
        pairs = zip(across, upward, strict=True)
        points = [self.place(float(x), float(y)) for x, y in pairs if math.isfinite(y)]
        return points if len(points) != 1 else [points[0], (points[0][0] + 3, points[0][1])]

    def grid(
        self,
        levels: Iterable[tuple[float, str]],
        numbers: Iterable[tuple[float, str]],
        label: str,
        *,
        divider: float | None = None,
        below: float = 34.0,
    ) -> list[Mark]:
        """Horizontal lines with their texts, and below the plot the numbers that do not overlap, and a label.

        Args:
            levels: values of the vertical axis with their texts.
            numbers: values of the horizontal axis with their texts, ascending.
            label: label of the horizontal axis.
            divider: the level whose line is emphasised.
            below: distance of the label from the plot, in pixels.
        """
        marks: list[Mark] = []
        for level, text in levels:
            y = self.y(level)
            marks.append(Line([(self.left, y), (self.right, y)], "divider" if level == divider else "rule"))
            marks.append(Label(self.left - 6, y + 4, text, "text-soft", SMALL, "end"))
        free = -math.inf
        for value, text in numbers:
            x, half = self.x(value), width_of(text, SMALL) / 2
            if x - half > free:
                marks.append(Label(x, self.bottom + 16, text, "text-soft", SMALL, "middle"))
                free = x + half + 3
        middle = (self.left + self.right) / 2
        return [*marks, Label(middle, self.bottom + below, label, "text-soft", SMALL, "middle")]


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Axis ticks that span [low, high]: about ``most`` steps of 1, 2, 2.5 or 5 times a power of ten."""
    if not high - low > NEGLIGIBLE:
        high = low + (abs(low) if abs(low) > NEGLIGIBLE else 1.0)
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * place, 12) for place in range(first, last + 1)]
