"""Coverage of the mean change of the worst class between epochs, of a trend and of the fluctuation over images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.coverage.base import Regime, simulated
from classwise.analysis.fluctuation import fluctuation
from classwise.analysis.trend import trend_of
from classwise.stats.counts import ClassCounts

Floats = NDArray[np.float64]
IMAGES = 100


def mean_change(repetitions: int) -> Iterator[Regime]:
    """Epochs of ten classes of 100 images at 40 %; the truth is the mean change over many such windows."""
    for name, drift in (
        ("noise about a constant", 0.0),
        ("drift of 20 points", 0.2),
        ("alternating by 10 points", 0.1),
    ):
        for epochs in (4, 5, 10, 30):
            alternating = name.startswith("alternating")
            shift = drift * (np.arange(epochs) % 2 if alternating else np.arange(epochs) / (epochs - 1))
            rate: Floats = np.asarray(0.4 + shift[:, None], dtype=np.float64)
            many = np.random.default_rng(0).binomial(IMAGES, rate, (4000, epochs, 10)).min(axis=2) / IMAGES
            truth = float(np.abs(np.diff(many, axis=1)).mean())

            def draw(
                rng: np.random.Generator, rate: Floats = rate, epochs: int = epochs, truth: float = truth
            ) -> tuple[float, float, float]:
                correct = rng.binomial(IMAGES, rate, (epochs, 10))
                counts = {at: ClassCounts(np.full(10, IMAGES), row) for at, row in enumerate(correct, 1)}
                found: pd.Series[float] = trend_of({"run": counts}, [str(label) for label in range(10)]).summary.iloc[0]
                return float(found["change_low"]), float(found["change_high"]), truth

            yield simulated(f"{epochs} epochs, {name}", draw, max(repetitions // 10, 1))


def change_over_images(repetitions: int) -> Iterator[Regime]:
    """Ten epochs of fixed models on new images; the truth is the mean change of the lowest expected class accuracy."""
    yield from _fluctuation(repetitions, difference=False)


def difference_of_changes(repetitions: int) -> Iterator[Regime]:
    """Two runs of ten epochs of fixed models on new images; the truth is the difference of their mean changes."""
    yield from _fluctuation(repetitions, difference=True)


def _fluctuation(repetitions: int, *, difference: bool) -> Iterator[Regime]:
    classes = np.linspace(0.3, 0.7, 10)
    for size, other in ((0.0, 0.0), (0.1, 0.03)):
        for images in (100, 1000):
            for shared in (0.5, 0.9):
                labels, even = np.repeat(np.arange(10), images), np.arange(10)[:, None] % 2

                def draw(
                    rng: np.random.Generator,
                    sizes: tuple[float, float] = (size, other),
                    labels: NDArray[np.int64] = labels,
                    even: NDArray[np.int64] = even,
                    shared: float = shared,
                ) -> tuple[float, float, float]:
                    common, runs = rng.random(len(labels)), {}
                    for name, change in zip("ab", sizes, strict=True):
                        own = rng.random((10, len(labels)))
                        draws = np.where(rng.random(own.shape) < shared, common, own)
                        runs[name] = draws < (classes + change * even)[:, labels]
                    found = fluctuation(runs, labels, 10, resamples=200)
                    if difference:
                        return *found.differences["b"][1:], sizes[1] - sizes[0]
                    row = found.runs.iloc[0].to_dict()
                    return row["change_low"], row["change_high"], sizes[0]

                name = f"changes of {100 * size:.0f} points, {images:,} images a class, {100 * shared:.0f} % shared"
                yield simulated(f"{name}, difference" if difference else name, draw, max(repetitions // 20, 1))
