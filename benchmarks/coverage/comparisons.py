"""Differences of two models by class on the same images, permutation tests, and means of values in [0, 1]."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.coverage.base import Regime, simulated
from classwise.stats.bounded_means import mean_intervals
from classwise.stats.counts import PairedCounts
from classwise.stats.paired import class_differences
from classwise.stats.ranks import kendall, pearson, spearman

LAWS = {
    "2 % differ": (0.01, 0.01),
    "10 % differ, one-sided": (0.1, 0.0),
    "8 % differ": (0.05, 0.03),
    "half differ": (0.3, 0.2),
}
"""Shares of images that only the first or only the second model classifies correctly."""


def class_pairs(repetitions: int) -> Iterator[Regime]:
    """Simultaneous intervals of the differences of all classes, for new images, both models fixed."""
    for classes in (1, 10, 100):
        for images in (5, 20, 100, 1000):
            for name, (gained, lost) in LAWS.items():

                def draw(
                    rng: np.random.Generator,
                    size: tuple[int, int] = (classes, images),
                    law: tuple[float, float] = (gained, lost),
                ) -> tuple[float, float, float]:
                    only_first, only_second, rest = rng.multinomial(size[1], [*law, 1 - sum(law)], size=size[0]).T
                    found = class_differences(PairedCounts(rest, only_first, only_second, 0 * rest))
                    truth = law[0] - law[1]
                    if found.low.max() > truth:
                        return 1.0, 1.0, 0.0
                    return (-1.0, -1.0, 0.0) if found.high.min() < truth else (0.0, 0.0, 0.0)

                yield simulated(f"{classes} classes, {images} images each, {name}", draw, max(repetitions // 2, 10))


def permutations(repetitions: int) -> Iterator[Regime]:
    """Permutation tests of no association between two vectors over the classes."""
    for classes in (4, 10, 100):
        for statistic in (pearson, spearman, kendall):
            for law in ("normal", "skewed", "ties"):

                def draw(
                    rng: np.random.Generator, classes: int = classes, law: str = law, statistic: object = statistic
                ) -> tuple[float, float, float]:
                    drawn = rng.normal(size=(2, classes))
                    vectors = {"normal": drawn, "skewed": np.exp(2 * drawn), "ties": np.round(drawn)}[law]
                    wrong = statistic(*vectors).p_value < 0.05  # type: ignore[operator]
                    return float(wrong), float(wrong), 0.0

                name = f"{classes} classes, {statistic.__name__}, {law}"
                yield simulated(name, draw, max(repetitions // 5, 10))


def means_of_values(repetitions: int) -> Iterator[Regime]:
    """The mean of values in [0, 1] of a class, such as the variance of confidences, for new images."""
    for images in (2, 5, 20, 100):
        for name, (a, b) in {"skewed to 0": (0.1, 2.0), "near 0 or 1": (0.05, 0.05), "even": (1.0, 1.0)}.items():

            def draw(
                rng: np.random.Generator, images: int = images, law: tuple[float, float] = (a, b)
            ) -> tuple[float, float, float]:
                low, high = mean_intervals(rng.beta(*law, size=images), np.zeros(images, dtype=np.int64), 1)
                return float(low[0]), float(high[0]), law[0] / sum(law)

            yield simulated(f"{images} images, {name}", draw, repetitions)
