"""The brackets of a bisection: for each image an interval that contains its robust radius."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from classwise.stats.counts import BoolArray, FloatArray, IntArray


class Brackets:
    """The brackets of the images of a piece, and the cost of the search so far; arrays of (N,).

    Args:
        wrong: whether each clean image is misclassified, (N,).

    Attributes:
        low: the largest radius at which every attack failed, 0 if there is none.
        high: the smallest radius at which an attack succeeded, infinity if there is none.
        attack: the position in the suite of the attack that succeeded at ``high``; -1 if none did.
        probes: the number of radii at which the image was attacked.
        forwards, backwards: the number of passes.
    """

    def __init__(self, wrong: BoolArray) -> None:
        count = len(wrong)
        self.low, self.high = np.zeros(count), np.where(wrong, 0.0, np.inf)
        self.attack = np.full(count, -1)
        self.probes, self.backwards = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.forwards = np.ones(count, dtype=np.int64)

    @staticmethod
    def of(frame: pd.DataFrame) -> Brackets:
        """The brackets with the `columns` of a frame, in its order."""
        brackets = Brackets(np.zeros(len(frame), dtype=np.bool_))
        for name in brackets.columns():
            setattr(brackets, name, frame[name].to_numpy(copy=True))
        return brackets

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """All arrays by name."""
        return {name: getattr(self, name) for name in ("low", "high", "attack", "probes", "forwards", "backwards")}

    def probe(self, width: float, highest: float) -> FloatArray:
        """The next radius of each image, (N,): first ``highest``, then the midpoint of its bracket; NaN if finished.

        Args:
            width: the width of a finished bracket.
            highest: the largest radius.
        """
        untried = np.isinf(self.high) & (self.low == 0)
        open_ended = np.isinf(self.high) & ~untried
        wide = ~open_ended & (untried | (self.high - self.low > width * (1 + 1e-6)))
        finite = np.where(np.isinf(self.high), 0.0, self.high)
        return np.where(wide, np.where(untried, highest, (self.low + finite) / 2), np.nan)

    def set_robust(self, rows: IntArray, radius: FloatArray) -> None:
        """Update the brackets of images on which every attack failed.

        Args:
            rows: the images.
            radius: the radius of the attacks, one for each of ``rows``.
        """
        self.low[rows] = np.maximum(self.low[rows], radius)

    def set_adversarial(self, rows: IntArray, radius: FloatArray, attack: int) -> None:
        """Update the brackets of images on which an attack succeeded.

        If every attack failed at a larger radius, that failure was due to chance: the lower end is reset to 0.

        Args:
            rows: the images.
            radius: the distance of the adversarial example, one for each of ``rows``.
            attack: the position of the attack in the suite.
        """
        nearer = radius < self.high[rows]
        rows, radius = rows[nearer], radius[nearer]
        self.high[rows], self.attack[rows] = radius, attack
        self.low[rows] = np.where(radius <= self.low[rows], 0.0, self.low[rows])
