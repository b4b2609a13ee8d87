"""Digital: brightness, contrast, elastic, JPEG, pixelate and saturate (Hendrycks and Dietterich, 2019)."""

from __future__ import annotations

import io
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.rng import CounterRNG
from classwise.data.corruptions.base import Corruption
from classwise.data.corruptions.filters import moved
from classwise.data.images import to_unit


class Brightness(Corruption):
    """A constant on the largest channel (V of HSV), hue and saturation as they were; on the value itself in grey."""

    cifar = (0.05, 0.1, 0.15, 0.2, 0.3)
    imagenet = (0.1, 0.2, 0.3, 0.4, 0.5)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the constant."""
        value = x.amax(1, keepdim=True)
        lighter = (value + level).clamp(max=1)
        return torch.where(value > 0, x * lighter / value.clamp(min=1e-6), lighter)


class Contrast(Corruption):
    """Each channel drawn towards its mean over the image."""

    cifar = (0.75, 0.5, 0.4, 0.3, 0.15)
    imagenet = (0.4, 0.3, 0.2, 0.1, 0.05)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the share of contrast that is left."""
        mean = x.mean((2, 3), keepdim=True)
        return (x - mean) * level + mean


class ElasticTransform(Corruption):
    """Three points moved, the image with them by an affine map; then a smooth random displacement of every pixel."""

    cifar = ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
    # The authors' code has 244 for the side of images of 224 pixels; the shares are of the side itself here.
    imagenet = ((2.0, 0.7, 0.1), (2.0, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
    truncate: ClassVar[float] = 3.0

    def apply(self, x: Tensor, level: tuple[float, float, float], rng: CounterRNG, index: Tensor) -> Tensor:
        """The level is the displacement, its smoothness and how far the points go, in shares of the shorter side."""
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
    """JPEG by Pillow, decoded again."""

    cifar = (80, 65, 58, 50, 40)
    imagenet = (25, 18, 15, 10, 7)

    def apply(self, x: Tensor, level: int, rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is Pillow's quality."""

        def squeezed(picture: Image.Image) -> Image.Image:
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=level)
            return Image.open(buffer)

        return _each(x, squeezed)


class Pixelate(Corruption):
    """Fewer pixels by the mean of boxes, then as many as before."""

    cifar = (0.95, 0.9, 0.85, 0.75, 0.65)
    imagenet = (0.6, 0.5, 0.4, 0.3, 0.25)

    def apply(self, x: Tensor, level: float, rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the share of rows and columns that are left."""

        def coarse(picture: Image.Image) -> Image.Image:
            fewer = (max(1, int(picture.width * level)), max(1, int(picture.height * level)))
            return picture.resize(fewer, Image.Resampling.BOX).resize(picture.size, Image.Resampling.BOX)

        return _each(x, coarse)


class Saturate(Corruption):
    """The saturation (S of HSV) times a factor plus a constant, hue and value as they were; grey counts as red."""

    cifar = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))
    imagenet = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))

    def apply(self, x: Tensor, level: tuple[float, float], rng: CounterRNG, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the factor and the constant.

        Raises:
            ClasswiseError: for images without three channels.
        """
        if x.shape[1] != 3:
            raise ClasswiseError(f"the corruption 'saturate' needs 3 channels, and these images have {x.shape[1]}")
        factor, constant = level
        value = x.amax(1, keepdim=True)
        depth = value - x
        saturation = depth.amax(1, keepdim=True) / value.clamp(min=1e-6)
        wanted = (saturation * factor + constant).clamp(0, 1)
        red = value * torch.tensor([0.0, 1.0, 1.0], device=x.device).view(3, 1, 1)
        full = torch.where(saturation > 0, depth / saturation.clamp(min=1e-6), red)
        return value - full * wanted


def _each(x: Tensor, change: Any) -> Tensor:
    """Pillow's work on each picture, grey or RGB."""
    grey = x.shape[1] == 1
    arrays = x.mul(255).round().byte().cpu().permute(0, 2, 3, 1).numpy()
    pictures = (Image.fromarray(array[..., 0] if grey else array) for array in arrays)
    done = np.stack([np.asarray(change(picture)) for picture in pictures])
    back = torch.from_numpy(done[:, None] if grey else done.transpose(0, 3, 1, 2).copy())
    return to_unit(back.to(x.device))


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
