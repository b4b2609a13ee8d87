"""A regime of a simulation: how often an interval fails on either side, and how wide it is."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

ROUNDING = 1e-12
"""Ends that differ from the truth by less than this are equal to it."""


class Regime(NamedTuple):
    """How an interval, or a test, does in one population.

    Attributes:
        name: the population, such as ``10 classes of 2 images at 50 %``.
        above: share of the repetitions whose lower end is above the truth; of a test: that reject a true hypothesis.
        below: share of the repetitions whose upper end is below the truth.
        width: median width of the interval, in the unit of the truth; NaN for a test.
        repetitions: number of repetitions; 0 if the shares are exact.
        again: simulates the regime with other random numbers, in a number of repetitions; None if it is exact. The
            lowest coverage of many regimes is low by chance, too; that of a repetition of this regime is not.
    """

    name: str
    above: float
    below: float
    width: float
    repetitions: int
    again: Callable[[int], Regime] | None = None

    @property
    def coverage(self) -> float:
        """Share of the repetitions whose interval contains the truth."""
        return 1 - self.above - self.below

    @property
    def standard_error(self) -> float:
        """Standard error of `coverage` at 95 %."""
        return math.sqrt(0.95 * 0.05 / self.repetitions) if self.repetitions else 0.0


Simulation = Callable[[int], Iterator[Regime]]
"""Maps a number of repetitions to the regimes."""
Draw = Callable[[np.random.Generator], tuple[float, float, float]]
"""Draws data and returns the lower end, the upper end and the truth, which may differ between repetitions."""


def simulated(name: str, draw: Draw, repetitions: int, *, stream: int = 0) -> Regime:
    """Simulate a regime; its random numbers depend on its name and the stream only.

    Args:
        name: the population.
        draw: draws one repetition. A test returns 1, 1, 0 for a false rejection and 0, 0, 0 otherwise.
        repetitions: number of repetitions, at least 1.
        stream: number of the stream of random numbers.
    """
    rng = np.random.default_rng([zlib.crc32(name.encode()), stream])
    low, high, truth = np.array([draw(rng) for _ in range(repetitions)], dtype=np.float64).T
    return Regime(
        name,
        float((low > truth + ROUNDING).mean()),
        float((high < truth - ROUNDING).mean()),
        float(np.median(high - low)),
        repetitions,
        lambda more: simulated(name, draw, more, stream=stream + 1),
    )
