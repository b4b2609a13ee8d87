"""Measurements: an estimate with its interval that answers a question of a paper, without a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

from classwise.stats.intervals import Estimate

IMAGES = "new images of the same classes, with the trained models fixed"
"""Population of intervals over test images."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A measured quantity that informs an open question or a claim; it has no verdict.

    Attributes:
        question: id of the question or claim, such as ``benz20/C10``.
        quantity: description of the quantity.
        value: estimate, with its 95 % interval ``low`` to ``high``; NaN for an unknown end.
        unit: unit of the estimate; empty for a number without unit.
        population: what the interval covers; empty for a count without sampling error.
    """

    question: str
    quantity: str
    value: float
    low: float = math.nan
    high: float = math.nan
    unit: str = ""
    population: str = IMAGES

    @staticmethod
    def of(
        question: str,
        quantity: str,
        estimate: Estimate,
        unit: str = "points",
        population: str = IMAGES,
        limits: tuple[float, float] = (-math.inf, math.inf),
    ) -> Measurement:
        """Create a measurement from an estimate.

        Args:
            question: id of the question.
            quantity: description of the quantity.
            estimate: value with its 95 % interval, in the unit.
            unit: unit of the estimate.
            population: what the interval covers.
            limits: range of the quantity; the interval is clipped to it.

        Example:
            >>> from classwise.papers.measurements import Measurement
            >>> from classwise.stats.intervals import Estimate
            >>> one = Measurement.of("benz20/C10", "rank correlation of the classes", Estimate(0.9, 0.7, 1.0), unit="")
            >>> one.value, one.population
            (0.9, 'new images of the same classes, with the trained models fixed')
        """
        value, low, high = estimate
        return Measurement(
            question=question,
            quantity=quantity,
            value=value,
            low=max(low, limits[0]),
            high=min(high, limits[1]),
            unit=unit,
            population=population,
        )
