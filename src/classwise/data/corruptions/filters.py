"""Corruptions that move pixels: glass blur, motion blur and the elastic transform (Hendrycks and Dietterich, 2019)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from classwise.data.corruptions import Corruption, blurred
from classwise.draws import Draws

FAR = 45.0
"""Motion goes to the right, by an angle of at most this up or down, in degrees."""


class GlassBlur(Corruption):
    """A Gaussian filter, each pixel replaced by one near it, and the filter again.

    The authors' code means to exchange the two and overwrites one with the other; so does this, since an exchange one
    after the other carries pixels far.
    """

    cifar = ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))
    imagenet = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))

    def apply(self, x: Tensor, level: tuple[float, int, int], draws: Draws, index: Tensor) -> Tensor:
        """The level is the deviation of the filter, how far pixels go (-reach to reach - 1), and how often."""
        deviation, reach, rounds = level
        return blurred(shuffled(blurred(x, deviation), reach, rounds, draws, index), deviation)


class MotionBlur(Corruption):
    """Each pixel the mean of those along a line, with half of a Gaussian as weights; the edge goes on."""

    cifar = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
    imagenet = ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))

    def apply(self, x: Tensor, level: tuple[int, float], draws: Draws, index: Tensor) -> Tensor:
        """The level is half of the line's length and the deviation, in pixels."""
        return streaked(x, *level, FAR * (2 * draws.uniform(index) - 1))


class ElasticTransform(Corruption):
    """Three points moved, the image with them by an affine map; then a smooth random displacement of every pixel."""

    cifar = ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
    # The authors' code has 244 for the side of images of 224 pixels; the shares are of the side itself here.
    imagenet = ((2.0, 0.7, 0.1), (2.0, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
    truncate: ClassVar[float] = 3.0

    def apply(self, x: Tensor, level: tuple[float, float, float], draws: Draws, index: Tensor) -> Tensor:
        """The level is the displacement, its smoothness and how far the points go, in shares of the shorter side."""
        height, width = x.shape[-2:]
        alpha, deviation, far = (share * min(height, width) for share in level)
        points = far * (2 * draws.child("points").uniform(index, (3, 2)) - 1)
        x = moved(x, *affine(points, height, width))
        if alpha == 0:
            return x
        field = 2 * draws.child("field").uniform(index, (2, height, width)) - 1
        rows, columns = (smoothing(side, deviation, self.truncate).to(x) for side in (height, width))
        across, down = (alpha * (rows @ field @ columns.T)).unbind(1)
        return moved(x, across, down)


def moved(x: Tensor, across: Tensor, down: Tensor, border: str = "reflection") -> Tensor:
    """Images whose pixel (i, j) is that of (i + down, j + across), bilinear, mirrored or held at the border.

    Args:
        x: (N, C, H, W).
        across: (N, H, W) pixels.
        down: (N, H, W) pixels.
        border: ``reflection`` or ``border``, as torch names them.
    """
    height, width = x.shape[-2:]
    rows, columns = torch.meshgrid(*(torch.arange(side, device=x.device) for side in (height, width)), indexing="ij")
    places = [2 * (at + by) / max(side - 1, 1) - 1 for at, by, side in ((columns, across, width), (rows, down, height))]
    return F.grid_sample(x, torch.stack(places, -1).to(x), mode="bilinear", padding_mode=border, align_corners=True)


def streaked(x: Tensor, radius: int, deviation: float, degrees: Tensor) -> Tensor:
    """Means along lines of 2 radius + 1 pixels that begin at each pixel, weights exp(-i^2 / 2 deviation^2).

    Args:
        x: (N, C, H, W).
        radius: half of the length.
        deviation: of the weights.
        degrees: (N,) direction of each image's line; 0 is to the right, 90 down.
    """
    weights = [math.exp(-0.5 * (at / deviation) ** 2) for at in range(2 * radius + 1)]
    angle = torch.deg2rad(degrees).view(-1, 1, 1)
    still = torch.zeros(1, *x.shape[-2:], device=x.device)
    total = torch.zeros_like(x)
    for at, weight in enumerate(weights):
        total += weight * moved(x, still + at * angle.cos(), still + at * angle.sin(), "border")
    return total / sum(weights)


def shuffled(x: Tensor, reach: int, rounds: int, draws: Draws, index: Tensor) -> Tensor:
    """Every pixel of the inside, from the last to the first, takes the values of one near it."""
    x = x.clone()
    images = torch.arange(len(x), device=x.device)
    height, width = x.shape[-2:]
    for turn in range(rounds):
        shift = draws.integers(index, (2, height, width), 2 * reach, counter=turn) - reach
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                there = (images, slice(None), row + shift[:, 0, row, column], column + shift[:, 1, row, column])
                x[:, :, row, column] = x[there]
    return x


def affine(points: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """How far each pixel's source lies from it, under the affine map that moves three points of the image by these.

    Args:
        points: (N, 3, 2) by how much, across and down, in pixels.
        height: of the images.
        width: of the images.

    Returns:
        across and down, (N, height, width).
    """
    middle, reach = torch.tensor([width // 2, height // 2]), min(height, width) // 3
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]) * reach + middle
    corners = corners.to(points)
    ones = torch.ones(len(points), 3, 1, device=points.device)
    back = torch.linalg.solve(torch.cat([corners + points, ones], -1), corners.expand(len(points), 3, 2))
    rows, columns = torch.meshgrid(
        *(torch.arange(side, device=points.device, dtype=points.dtype) for side in (height, width)), indexing="ij"
    )
    here = torch.stack([columns, rows, torch.ones_like(rows)], -1)
    source = torch.einsum("hwk,nkd->nhwd", here, back)
    across, down = (source - here[..., :2]).unbind(-1)
    return across, down


def smoothing(side: int, deviation: float, truncate: float) -> Tensor:
    """The matrix (side, side) of a Gaussian filter cut at ``truncate`` deviations, the line mirrored at its ends."""
    reach = int(truncate * deviation + 0.5)
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (offsets / max(deviation, 1e-12)) ** 2)
    places = (torch.arange(side)[:, None] + offsets) % (2 * side)
    places = torch.where(places < side, places, 2 * side - 1 - places)
    return torch.zeros(side, side).scatter_add_(1, places, (weights / weights.sum()).expand(side, -1))
