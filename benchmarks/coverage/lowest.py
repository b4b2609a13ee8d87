"""The lowest class accuracy of one run: exact coverage, since an end is a minimum over independent classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.coverage.base import ROUNDING, Regime
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import lowest_interval

Floats = NDArray[np.float64]
CLASSES = (2, 3, 10, 20, 100, 200, 1000)
IMAGES = (1, 3, 10, 25, 100, 500, 1000)
PROFILES: Mapping[str, Callable[[int], Floats]] = {
    "all 40 %": lambda classes: np.full(classes, 0.4),
    "all 95 %": lambda classes: np.full(classes, 0.95),
    "two 30 %, others 50 %": lambda classes: np.where(np.arange(classes) < 2, 0.3, 0.5),
    "20 to 80 %": lambda classes: np.linspace(0.2, 0.8, classes),
    "one 10 %, others 60 %": lambda classes: np.where(np.arange(classes) < 1, 0.1, 0.6),
    "0.5 to 5 %": lambda classes: np.linspace(0.005, 0.05, classes),
}
"""True class accuracies."""


def exact(name: str, accuracy: Floats, images: int, alpha: float = 0.05) -> Regime:
    """Coverage and mean width of `lowest_interval` for classes with these accuracies and this number of images.

    An end is the minimum of the bounds of the classes, so its distribution function is a product.
    """
    classes, truth = len(accuracy), accuracy.min()
    low, high = _bounds(classes, images, alpha)
    distinct, number = np.unique(accuracy, return_counts=True)
    law = np.asarray(stats.binom.pmf(np.arange(images + 1), images, distinct[:, None]))
    above = float(np.prod((law @ (low > truth + ROUNDING)) ** number))
    below = 1 - float(np.prod((1 - law @ (high < truth - ROUNDING)) ** number))
    width = _mean_of_minimum(high, law, number) - _mean_of_minimum(low, law, number)
    return Regime(name, above, below, width, 0)


@cache
def _bounds(classes: int, images: int, alpha: float) -> tuple[Floats, Floats]:
    """Bounds of a class by its number of correct predictions (images + 1,); all other classes are always correct."""
    others = np.full(classes - 1, images)
    every = [
        lowest_interval(ClassCounts(np.full(classes, images), np.r_[correct, others]), alpha)
        for correct in range(images + 1)
    ]
    low, high = np.array(every).T
    return low, high


def _mean_of_minimum(bound: Floats, law: Floats, number: NDArray[np.int64]) -> float:
    """Mean of the minimum over independent classes: the integral of the product of their survival functions."""
    order = np.argsort(bound)
    values, beyond = bound[order], np.clip(1 - np.cumsum(law[:, order], axis=1), 0, 1)
    survival = np.prod(beyond ** number[:, None], axis=0)
    return float(values[0] + (np.diff(values) * survival[:-1]).sum())


def lowest_classes(repetitions: int) -> Iterator[Regime]:
    """The lowest class accuracy, for new images of the same classes, the model fixed; exact, not simulated."""
    sizes = (classes for classes in CLASSES if classes <= repetitions)
    for classes in sizes:
        for images in IMAGES:
            for name, profile in PROFILES.items():
                yield exact(f"{classes} classes, {images} images each, {name}", profile(classes), images)
