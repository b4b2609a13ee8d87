"""Purity of the neighbourhoods of images in feature space, whose images are each other's neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage.base import Regime, simulated
from classwise.analysis.embedding import mean_share, neighbour_shares

Floats = NDArray[np.float64]
Features = Callable[[np.random.Generator, NDArray[np.int64]], Floats]
"""Draws the features (N, F) of images with the labels (N,)."""
TRUTHS = 400
"""Number of draws whose mean purity is taken as the true one: its standard error is a twentieth of that of a draw."""


def normal(separation: float, dimensions: int) -> Features:
    """Classes are normal distributions around means at this distance scale."""

    def draw(rng: np.random.Generator, labels: NDArray[np.int64]) -> Floats:
        means = np.random.default_rng(0).normal(size=(labels.max() + 1, dimensions))
        return separation * means[labels] + rng.normal(size=(len(labels), dimensions))

    return draw


def clusters(number: int, own: float, spread: float = 0.05) -> Features:
    """Images are in narrow clusters, each of mostly one class: whole neighbourhoods are right or wrong together."""

    def draw(rng: np.random.Generator, labels: NDArray[np.int64]) -> Floats:
        classes = labels.max() + 1
        centres = np.random.default_rng(0).normal(size=(classes, number, 8))
        wrong = rng.random(len(labels)) > own
        belongs = np.where(wrong, rng.integers(classes, size=len(labels)), labels)
        chosen = centres[belongs, rng.integers(number, size=len(labels))]
        return chosen + spread * rng.normal(size=chosen.shape)

    return draw


def purities(repetitions: int) -> Iterator[Regime]:
    """Mean share of the ten nearest neighbours of an image's class, for as many new images and the same features."""
    regimes: dict[str, tuple[int, int, Features]] = {
        "10 classes of 20 images, mixed": (10, 20, normal(0.3, 8)),
        "10 classes of 20 images, apart": (10, 20, normal(1.5, 8)),
        "10 classes of 40 images, in part mixed": (10, 40, normal(0.7, 8)),
        "10 classes of 40 images, in a plane": (10, 40, normal(1.0, 2)),
        "10 classes of 30 images, 128 dimensions": (10, 30, normal(0.15, 128)),
        "2 classes of 30 images, nearly pure": (2, 30, normal(3.0, 4)),
        "10 classes of 40 images in 5 clusters each, 80 % in their own": (10, 40, clusters(5, 0.8)),
        "3 classes of 40 images in 2 clusters each, 98 % in their own": (3, 40, clusters(2, 0.98)),
    }
    for name, (classes, images, features) in regimes.items():
        labels = np.repeat(np.arange(classes), images)
        rng = np.random.default_rng(1)
        truth = float(np.mean([neighbour_shares(features(rng, labels), labels)[0].mean() for _ in range(TRUTHS)]))

        def draw(
            rng: np.random.Generator,
            labels: NDArray[np.int64] = labels,
            features: Features = features,
            truth: float = truth,
        ) -> tuple[float, float, float]:
            _, low, high = mean_share(neighbour_shares(features(rng, labels), labels))
            return low, high, truth

        yield simulated(name, draw, max(repetitions // 10, 1))
