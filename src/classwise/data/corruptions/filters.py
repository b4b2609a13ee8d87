"""Image filters that several corruptions share."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def gaussian(deviation: float, reach: int) -> Tensor:
    """A line of 2 reach + 1 weights that add up to 1."""
    place = torch.arange(-reach, reach + 1, dtype=torch.float32)
    line = torch.exp(-0.5 * (place / deviation) ** 2)
    return line / line.sum()


def filtered(x: Tensor, kernel: Tensor, border: str) -> Tensor:
    """Images (N, C, H, W) under one symmetric kernel (2a + 1, 2a + 1), of the same size.

    A reach of more than the images' own size is cut to it where the border is mirrored.
    """
    reach = kernel.shape[0] // 2
    fits = min(x.shape[-2:]) - 1 if border == "reflect" else reach
    if reach > fits:
        kernel = kernel[reach - fits : reach + fits + 1, reach - fits : reach + fits + 1]
        kernel, reach = kernel / kernel.sum(), fits
    padded = F.pad(x, (reach,) * 4, mode=border)
    flat = padded.flatten(0, 1)[:, None]
    return F.conv2d(flat, kernel[None, None].to(x)).view(x.shape)


def blurred(x: Tensor, deviation: float) -> Tensor:
    """Images under a Gaussian filter, cut at four deviations; the edge goes on beyond the border."""
    line = gaussian(deviation, int(4 * deviation + 0.5)).to(x)
    return filtered(x, line[:, None] * line, "replicate")


def enlarged(x: Tensor, factor: float) -> Tensor:
    """The middle of the images, enlarged to their size: bilinear, corner pixels on corner pixels."""
    sides = x.shape[-2:]
    crops = [math.ceil(side / factor) for side in sides]
    top, left = ((side - crop) // 2 for side, crop in zip(sides, crops, strict=True))
    middle = x[..., top : top + crops[0], left : left + crops[1]]
    sizes = [round(crop * factor) for crop in crops]
    large = F.interpolate(middle, sizes, mode="bilinear", align_corners=True)
    top, left = ((size - side) // 2 for size, side in zip(sizes, sides, strict=True))
    return large[..., top : top + sides[0], left : left + sides[1]]


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
