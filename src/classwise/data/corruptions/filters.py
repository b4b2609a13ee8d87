"""Image filters shared by several corruptions."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def gaussian(deviation: float, reach: int) -> Tensor:
    """One-dimensional Gaussian kernel of 2 reach + 1 weights, with sum 1."""
    offset = torch.arange(-reach, reach + 1, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (offset / deviation) ** 2)
    return kernel / kernel.sum()


def filtered(x: Tensor, kernel: Tensor, border: str) -> Tensor:
    """Filter images (N, C, H, W) with a symmetric kernel (2a + 1, 2a + 1); their size does not change.

    With reflection padding, a kernel larger than the images is cropped.
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
    """Apply a Gaussian filter truncated at four standard deviations, with edge padding."""
    line = gaussian(deviation, int(4 * deviation + 0.5)).to(x)
    return filtered(x, line[:, None] * line, "replicate")


def enlarged(x: Tensor, factor: float) -> Tensor:
    """The centre of the images, enlarged to their size, bilinear with aligned corners."""
    sides = x.shape[-2:]
    crops = [math.ceil(side / factor) for side in sides]
    top, left = ((side - crop) // 2 for side, crop in zip(sides, crops, strict=True))
    middle = x[..., top : top + crops[0], left : left + crops[1]]
    sizes = [round(crop * factor) for crop in crops]
    large = F.interpolate(middle, sizes, mode="bilinear", align_corners=True)
    top, left = ((size - side) // 2 for size, side in zip(sizes, sides, strict=True))
    return large[..., top : top + sides[0], left : left + sides[1]]


def moved(x: Tensor, across: Tensor, down: Tensor, border: str = "reflection") -> Tensor:
    """Images whose pixel (i, j) is the source pixel (i + down, j + across), with bilinear interpolation.

    Args:
        x: images (N, C, H, W).
        across: horizontal offsets in pixels, (N, H, W).
        down: vertical offsets in pixels, (N, H, W).
        border: padding mode of `torch.nn.functional.grid_sample`, ``"reflection"`` or ``"border"``.
    """
    height, width = x.shape[-2:]
    rows, columns = torch.meshgrid(*(torch.arange(side, device=x.device) for side in (height, width)), indexing="ij")
    grid = [2 * (at + by) / max(side - 1, 1) - 1 for at, by, side in ((columns, across, width), (rows, down, height))]
    return F.grid_sample(x, torch.stack(grid, -1).to(x), mode="bilinear", padding_mode=border, align_corners=True)


def streaked(x: Tensor, radius: int, deviation: float, degrees: Tensor) -> Tensor:
    """Means along lines of 2 radius + 1 pixels that start at each pixel, with weights exp(-i^2 / 2 deviation^2).

    Args:
        x: images (N, C, H, W).
        radius: half the length of the line, in pixels.
        deviation: standard deviation of the weights, in pixels.
        degrees: direction of each image's line, (N,); 0 is right, 90 is down.
    """
    weights = [math.exp(-0.5 * (at / deviation) ** 2) for at in range(2 * radius + 1)]
    angle = torch.deg2rad(degrees).view(-1, 1, 1)
    still = torch.zeros(1, *x.shape[-2:], device=x.device)
    total = torch.zeros_like(x)
    for at, weight in enumerate(weights):
        total += weight * moved(x, still + at * angle.cos(), still + at * angle.sin(), "border")
    return total / sum(weights)
