"""Digital: brightness, contrast, elastic, JPEG, pixelate and saturate (Hendrycks and Dietterich, 2019)."""

from __future__ import annotations

import io
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.data.corruptions.base import Corruption
from classwise.data.corruptions.filters import moved
from classwise.data.images import to_unit


class Brightness(Corruption):
    """A constant added to the value (V of HSV, the largest channel); hue and saturation do not change."""

    cifar = (0.05, 0.1, 0.15, 0.2, 0.3)
    imagenet = (0.1, 0.2, 0.3, 0.4, 0.5)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """Apply the change; the level is the constant."""
        value = x.amax(1, keepdim=True)
        lighter = (value + level).clamp(max=1)
        return torch.where(value > 0, x * lighter / value.clamp(min=1e-6), lighter)


class Contrast(Corruption):
    """Each channel blended with its mean over the image."""

    cifar = (0.75, 0.5, 0.4, 0.3, 0.15)
    imagenet = (0.4, 0.3, 0.2, 0.1, 0.05)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """Apply the change; the level is the fraction of the contrast that remains."""
        mean = x.mean((2, 3), keepdim=True)
        return (x - mean) * level + mean


class ElasticTransform(Corruption):
    """A random affine map, defined by shifts of three points, then a smooth random displacement of every pixel."""

    cifar = ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
    # The authors' code uses 244 for the side of images of 224 pixels; here it is the actual side.
    imagenet = ((2.0, 0.7, 0.1), (2.0, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
    truncate: ClassVar[float] = 3.0

    def apply(self, x: Tensor, level: tuple[float, float, float], rng: CounterRNG, index: Tensor) -> Tensor:
        """Apply the map; the level is displacement, smoothness and shift, relative to the shorter side."""
        height, width = x.shape[-2:]
        alpha, deviation, far = (share * min(height, width) for share in level)
        points = far * (2 * rng.child("points").uniform(index, (3, 2)) - 1)
        x = moved(x, *affine(points, height, width))
        if alpha == 0:
            return x
        field = 2 * rng.child("field").uniform(index, (2, height, width)) - 1
        rows, columns = (smoothing(side, deviation, self.truncate).to(x) for side in (height, width))
        across, down = (alpha * (rows @ field @ columns.T)).unbind(1)
        return moved(x, across, down)


class JpegCompression(Corruption):
    """JPEG compression by Pillow."""

    cifar = (80, 65, 58, 50, 40)
    imagenet = (25, 18, 15, 10, 7)

    def apply(self, x: Tensor, level: int, rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """Apply the compression; the level is Pillow's quality."""

        def compressed(image: Image.Image) -> Image.Image:
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=level)
            return Image.open(buffer)

        return _each(x, compressed)


class Pixelate(Corruption):
    """Downsampling and upsampling with box filters."""

    cifar = (0.95, 0.9, 0.85, 0.75, 0.65)
    imagenet = (0.6, 0.5, 0.4, 0.3, 0.25)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """Apply the resampling; the level is the downsampling factor of each side."""

        def pixelated(image: Image.Image) -> Image.Image:
            smaller = (max(1, int(image.width * level)), max(1, int(image.height * level)))
            return image.resize(smaller, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)

        return _each(x, pixelated)


class Saturate(Corruption):
    """The saturation (S of HSV) times a factor plus a constant; the hue of gray pixels is red."""

    cifar = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))
    imagenet = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))

    def apply(self, x: Tensor, level: tuple[float, float], rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """Apply the change; the level is the factor and the constant.

        Raises:
            ClasswiseError: if the images have not three channels.
        """
        if x.shape[1] != 3:
            raise ClasswiseError(f"corruption 'saturate': the images have {x.shape[1]} channels, expected 3")
        factor, constant = level
        value = x.amax(1, keepdim=True)
        depth = value - x
        saturation = depth.amax(1, keepdim=True) / value.clamp(min=1e-6)
        wanted = (saturation * factor + constant).clamp(0, 1)
        red = value * torch.tensor([0.0, 1.0, 1.0], device=x.device).view(3, 1, 1)
        full = torch.where(saturation > 0, depth / saturation.clamp(min=1e-6), red)
        return value - full * wanted


def _each(x: Tensor, change: Any) -> Tensor:
    """Apply a function of Pillow images to each image, grayscale or RGB."""
    grey = x.shape[1] == 1
    arrays = x.mul(255).round().byte().cpu().permute(0, 2, 3, 1).numpy()
    images = (Image.fromarray(array[..., 0] if grey else array) for array in arrays)
    changed = np.stack([np.asarray(change(image)) for image in images])
    result = torch.from_numpy(changed[:, None] if grey else changed.transpose(0, 3, 1, 2).copy())
    return to_unit(result.to(x.device))


def affine(points: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Offset of each pixel's source under the affine map that shifts three points of the image.

    Args:
        points: shifts of the points, horizontal and vertical, in pixels, (N, 3, 2).
        height: height of the images.
        width: width of the images.

    Returns:
        Horizontal and vertical offsets, each (N, height, width).
    """
    middle, reach = torch.tensor([width // 2, height // 2]), min(height, width) // 3
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]) * reach + middle
    corners = corners.to(points)
    ones = torch.ones(len(points), 3, 1, device=points.device)
    inverse = torch.linalg.solve(torch.cat([corners + points, ones], -1), corners.expand(len(points), 3, 2))
    rows, columns = torch.meshgrid(
        *(torch.arange(side, device=points.device, dtype=points.dtype) for side in (height, width)), indexing="ij"
    )
    here = torch.stack([columns, rows, torch.ones_like(rows)], -1)
    source = torch.einsum("hwk,nkd->nhwd", here, inverse)
    across, down = (source - here[..., :2]).unbind(-1)
    return across, down


def smoothing(side: int, deviation: float, truncate: float) -> Tensor:
    """Matrix (side, side) of a Gaussian filter truncated at ``truncate`` deviations, with symmetric padding."""
    reach = int(truncate * deviation + 0.5)
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (offsets / max(deviation, 1e-12)) ** 2)
    positions = (torch.arange(side)[:, None] + offsets) % (2 * side)
    positions = torch.where(positions < side, positions, 2 * side - 1 - positions)
    return torch.zeros(side, side).scatter_add_(1, positions, (weights / weights.sum()).expand(side, -1))
