"""Coverage of the mean and the median robust radius of a curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.coverage.base import Regime, simulated
from classwise.auditing.curve.result import COLUMNS, Curve
from classwise.auditing.outcomes.meta import Meta

Floats = NDArray[np.float64]
STEP = 2.0**-6
"""Width of a bracket; the largest radius of the search is 1."""
LARGE = 400_000
"""Number of images that stand for the population."""


def _radii(rng: np.random.Generator, kind: str, images: int) -> Floats:
    """Upper ends of the brackets of robust radii: 0 if wrong when clean, infinity above 1."""
    few = rng.random(images)
    laws: Mapping[str, Floats] = {
        "3 % of the images far more robust": np.where(
            few < 0.03, rng.uniform(0.3, 1, images), rng.exponential(0.01, images)
        ),
        "3 % wrong, others above the end": np.where(few < 0.03, 0.0, 2.0),
        "8 % wrong, others above the end": np.where(few < 0.08, 0.0, 2.0),
        "10 % wrong, others exponential": np.where(few < 0.1, 0.0, rng.exponential(0.2, images)),
        "5 % above the end, others wrong": np.where(few < 0.05, 2.0, 0.0),
        "uniform, a sixth above the end": rng.uniform(0, 1.2, images),
    }
    radius = laws[kind]
    return np.where(radius <= 0, 0.0, np.where(radius > 1, np.inf, np.ceil(np.maximum(radius, 1e-9) / STEP) * STEP))


KINDS = (
    "3 % of the images far more robust",
    "3 % wrong, others above the end",
    "8 % wrong, others above the end",
    "10 % wrong, others exponential",
    "5 % above the end, others wrong",
    "uniform, a sixth above the end",
)


def _curve(high: Floats) -> Curve:
    columns = {name: np.zeros(len(high), dtype=np.int64) for name in COLUMNS} | {"high": high, "low": high}
    return Curve(pd.DataFrame(columns), Meta(class_names=("all",), attacks={}), highest=1.0, rounds=6)


def _simulated(statistic: Literal["mean", "median"], repetitions: int) -> Iterator[Regime]:
    for kind in KINDS:
        population = np.sort(_radii(np.random.default_rng(0), kind, LARGE))
        truth = float(np.minimum(population, 1).mean() if statistic == "mean" else population[LARGE // 2])
        for images in (2, 3, 5, 10, 20, 50, 100, 1000):

            def draw(
                rng: np.random.Generator, kind: str = kind, images: int = images, truth: float = truth
            ) -> tuple[float, float, float]:
                row = _curve(_radii(rng, kind, images)).summary.to_dict("index")["overall"]
                low, high = float(row[f"{statistic}_low"]), float(row[f"{statistic}_high"])
                return min(low, 1e9), min(high, 1e9), min(truth, 1e9)

            yield simulated(f"{images} images, {kind}", draw, max(repetitions // 4, 1))


def mean_radius(repetitions: int) -> Iterator[Regime]:
    """Images of one class; truth: their mean robust radius, with radii above the end of the curve as its end."""
    yield from _simulated("mean", repetitions)


def median_radius(repetitions: int) -> Iterator[Regime]:
    """Images of one class; truth: their median robust radius, infinite if above the end of the curve."""
    yield from _simulated("median", repetitions)
