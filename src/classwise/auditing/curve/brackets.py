"""The brackets of a bisection: for each image the radii between which its robust radius lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from classwise.stats.counts import BoolArray, FloatArray, IntArray


class Brackets:
    """What is known of the radius of each image of a piece; arrays of (N,).

    Attributes:
        low: the largest radius at which every attack failed, 0 if there is none.
        high: the smallest radius at which an attack succeeded, infinity if there is none.
        breaker: the place in the suite of the attack that succeeded at ``high``; -1 if none did.
        probes: radii at which it was attacked.
        forwards, backwards: passes spent.
    """

    def __init__(self, wrong: BoolArray) -> None:
        count = len(wrong)
        self.low, self.high = np.zeros(count), np.where(wrong, 0.0, np.inf)
        self.breaker = np.full(count, -1)
        self.probes, self.backwards = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.forwards = np.ones(count, dtype=np.int64)

    @staticmethod
    def of(frame: pd.DataFrame) -> Brackets:
        """The brackets whose `columns` are in a frame, in its order."""
        found = Brackets(np.zeros(len(frame), dtype=np.bool_))
        for name in found.columns():
            setattr(found, name, frame[name].to_numpy(copy=True))
        return found

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """All arrays by name."""
        return {name: getattr(self, name) for name in ("low", "high", "breaker", "probes", "forwards", "backwards")}

    def probe(self, width: float, highest: float) -> FloatArray:
        """The radius to try next, NaN where the bracket is as narrow as wanted: the middle, and at first the end."""
        untried = np.isinf(self.high) & (self.low == 0)
        open_ended = np.isinf(self.high) & ~untried
        wide = ~open_ended & (untried | (self.high - self.low > width * (1 + 1e-6)))
        finite = np.where(np.isinf(self.high), 0.0, self.high)
        return np.where(wide, np.where(untried, highest, (self.low + finite) / 2), np.nan)

    def set_robust(self, rows: IntArray, radius: FloatArray) -> None:
        """Every attack failed on some images at a radius."""
        self.low[rows] = np.maximum(self.low[rows], radius)

    def set_adversarial(self, rows: IntArray, radius: FloatArray, attack: int) -> None:
        """An attack succeeded on some images within a radius.

        If the radius is below one at which every attack failed, that earlier failure was chance: the search for the
        image begins again below.
        """
        nearer = radius < self.high[rows]
        rows, radius = rows[nearer], radius[nearer]
        self.high[rows], self.breaker[rows] = radius, attack
        self.low[rows] = np.where(radius <= self.low[rows], 0.0, self.low[rows])
