"""Blur: Gaussian, defocus, glass, motion and zoom (Hendrycks and Dietterich, 2019)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.data.corruptions.base import Corruption
from classwise.data.corruptions.filters import blurred, enlarged, filtered, gaussian, streaked

MAX_ANGLE = 45.0
"""Maximum angle of motion from the horizontal, in degrees."""


class GaussianBlur(Corruption):
    """A Gaussian filter truncated at four standard deviations, with edge padding."""

    cifar = (0.4, 0.6, 0.7, 0.8, 1.0)
    imagenet = (1.0, 2.0, 3.0, 4.0, 6.0)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """Apply the filter; the level is its standard deviation in pixels."""
        return blurred(x, level)


class DefocusBlur(Corruption):
    """A disk kernel smoothed by a Gaussian of 3x3 (5x5 for large disks), with reflection padding."""

    cifar = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
    imagenet = ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5))

    def apply(self, x: Tensor, level: tuple[float, float], rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """Apply the filter; the level is the radius of the disk and the deviation of the Gaussian, in pixels."""
        radius, smooth = level
        small = 1 if radius <= 8 else 2
        reach = int(radius) + small
        offset = torch.arange(-reach, reach + 1, dtype=torch.float32, device=x.device)
        disk = ((offset[:, None] ** 2 + offset**2) <= radius**2).float()
        line = gaussian(smooth, small).to(x)
        kernel = filtered((disk / disk.sum())[None, None], line[:, None] * line, "constant")[0, 0]
        return filtered(x, kernel, "reflect")


class GlassBlur(Corruption):
    """A Gaussian filter, replacement of each pixel by a nearby one, and the filter again.

    The authors' code intends to swap pixels but overwrites one with the other; so does this implementation, because
    successive swaps would move pixels far.
    """

    cifar = ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))
    imagenet = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))

    def apply(self, x: Tensor, level: tuple[float, int, int], rng: CounterRNG, index: Tensor) -> Tensor:
        """Apply the corruption; the level is the deviation, the maximum shift in pixels and the number of rounds."""
        deviation, reach, rounds = level
        return blurred(shuffled(blurred(x, deviation), reach, rounds, rng, index), deviation)


class MotionBlur(Corruption):
    """A weighted mean of the pixels along a line, with half a Gaussian as weights and edge padding."""

    cifar = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
    imagenet = ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))

    def apply(self, x: Tensor, level: tuple[int, float], rng: CounterRNG, index: Tensor) -> Tensor:
        """Apply the filter; the level is half the length of the line and the standard deviation, in pixels."""
        return streaked(x, *level, MAX_ANGLE * (2 * rng.uniform(index) - 1))


class ZoomBlur(Corruption):
    """The mean of the image and its enlargements."""

    # numpy's arange, as in the authors' code: due to rounding, some of the ranges include their end.
    cifar = tuple(tuple(np.arange(1, end, 0.01).tolist()) for end in (1.06, 1.11, 1.16, 1.21, 1.26))
    imagenet = tuple(
        tuple(np.arange(1, end, step).tolist())
        for end, step in ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
    )

    def apply(self, x: Tensor, level: tuple[float, ...], rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """Apply the blur; the level is the zoom factors, from 1."""
        total = x.clone()
        for factor in level:
            total += enlarged(x, factor)
        return total / (len(level) + 1)


def shuffled(x: Tensor, reach: int, rounds: int, rng: CounterRNG, index: Tensor) -> Tensor:
    """Replace every inner pixel, from the last to the first, by a random pixel near it."""
    x = x.clone()
    images = torch.arange(len(x), device=x.device)
    height, width = x.shape[-2:]
    for turn in range(rounds):
        shift = rng.integers(index, (2, height, width), 2 * reach, counter=turn) - reach
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                source = (images, slice(None), row + shift[:, 0, row, column], column + shift[:, 1, row, column])
                x[:, :, row, column] = x[source]
    return x
