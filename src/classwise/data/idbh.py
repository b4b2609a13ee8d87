"""IDBH-weak (Li and Spratling, ICLR 2023), an augmentation for adversarial training, on the device."""

from __future__ import annotations

import math
from typing import Annotated

import pydantic
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import Share, configurable
from classwise.data.augment import Augmentation
from classwise.data.images import to_unit

COLOUR, BRIGHTNESS, CONTRAST, SHARPNESS, AUTOCONTRAST, EQUALISE, SHEAR, ROTATE = range(8)
OPERATIONS = 8
_LUMINANCE = (0.299, 0.587, 0.114)
_FACTORS = ((0.1, 1.9), (0.5, 1.9), (0.5, 1.9), (0.1, 1.9))
"""Range of the blending factor of the first four operations: 0 is the base image, 1 the image."""
_SHEAR = (0.05, 0.15)
_DEGREES = (1.0, 10.0)
_AREA = (0.02, 0.33)
_ASPECT = (0.3, 3.3)


@configurable
class IDBHWeak(Augmentation):
    """IDBH-weak: random flip, crop-shift, one of eight colour or shape operations, and random erasing.

    - Horizontal flip with probability 0.5.
    - Crop-shift: n, uniform over 0..``shift``, is the total number of rows and columns removed at the borders. The rest
      is placed at a random position on zeros. If a side is shorter than 3 ``shift``, at most a third of it is removed.
    - One operation, each with probability 1/8: saturation, brightness, contrast, sharpness (blends of the image with
      its grayscale image, with 0, with its mean gray level, with its smoothed image, by a factor of at most 1.9),
      autocontrast, equalisation (per channel), shear by 0.05 to 0.15 along either axis, rotation by 1 to 10 degrees.
    - Random erasing with probability ``erase``: a rectangle of 2 to 33 % of the area and an aspect ratio of 0.3 to 3.3
      is set to 0.

    Operations, ranges and nearest-pixel interpolation are those of the public code. The random numbers differ, and a
    rectangle that exceeds the image is clipped instead of resampled.

    Args:
        shift: maximum number of rows and columns that are removed.
        erase: probability of erasing a rectangle.
    """

    source = ("li2023data",)
    changes = ("data",)
    example = "idbh-weak"

    shift: Annotated[int, pydantic.Field(ge=0)] = 10
    erase: Share = 0.5

    def __call__(self, x: Tensor, index: Tensor, rng: CounterRNG) -> Tensor:
        """Augment images (N, C, H, W), uint8 or float in [0, 1]; the data type does not change."""
        height, width = x.shape[2:]
        shift = min(self.shift, min(height, width) // 3)
        operation = rng.child("operation").integers(index, (), OPERATIONS)
        row, column = shaped(height, width, operation, rng.child("shape").uniform(index, (3,)))
        inside = _within(row, height) & _within(column, width)
        row, column, kept = crop_shifted(row, column, height, width, shift, rng.child("crop"), index)
        mirror = rng.child("flip").integers(index, (1, 1), 2).bool()
        column = torch.where(mirror, width - 1 - column, column)
        image = torch.arange(len(x), device=x.device)[:, None, None]
        moved = x[image, :, row.clamp(0, height - 1), column.clamp(0, width - 1)].permute(0, 3, 1, 2)
        pixels = to_unit(moved) if x.dtype == torch.uint8 else moved
        pixels = pixels * (inside & kept)[:, None]
        pixels = coloured(pixels, operation, rng.child("factor").uniform(index))
        pixels = pixels * ~self._erased(height, width, index, rng.child("erase"))[:, None]
        return pixels.mul(255).round_().to(torch.uint8) if x.dtype == torch.uint8 else pixels

    def _erased(self, height: int, width: int, index: Tensor, rng: CounterRNG) -> Tensor:
        """Mask of the erased pixels, bool (N, H, W)."""
        happens, area, aspect, down, across = rng.uniform(index, (5, 1, 1)).unbind(1)
        area = (_AREA[0] + (_AREA[1] - _AREA[0]) * area) * height * width
        low, high = (math.log(value) for value in _ASPECT)
        aspect = (low + (high - low) * aspect).exp()
        tall = (area * aspect).sqrt().round().clamp(1, height)
        wide = (area / aspect).sqrt().round().clamp(1, width)
        top, left = _pick(down, height - tall), _pick(across, width - wide)
        rows = torch.arange(height, device=index.device)[None, :, None]
        columns = torch.arange(width, device=index.device)[None, None, :]
        inside = (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)
        return inside & (happens < self.erase)


def _pick(uniform: Tensor, maximum: Tensor) -> Tensor:
    """A uniform integer in 0..maximum from a uniform number in [0, 1)."""
    return (uniform * (maximum + 1)).floor().minimum(maximum)


def _within(position: Tensor, length: int) -> Tensor:
    return (position >= 0) & (position < length)


def crop_shifted(
    row: Tensor, column: Tensor, height: int, width: int, shift: int, rng: CounterRNG, index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Source positions of the pixels at ``row``, ``column`` (N, H, W) under a crop-shift, and their validity."""
    total, share, *positions = rng.uniform(index, (6, 1, 1)).unbind(1)
    cut = _pick(total, torch.full_like(total, shift))
    rows = _pick(share, cut)
    columns = cut - rows
    top, left, down, across = (
        _pick(position, maximum) for position, maximum in zip(positions, [rows, columns] * 2, strict=True)
    )
    row, column = row - down.long(), column - across.long()
    kept = (row >= 0) & (row < height - rows) & (column >= 0) & (column < width - columns)
    return row + top.long(), column + left.long(), kept


def shaped(height: int, width: int, operation: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Source row and column, int64 (N, H, W), of each pixel under the shear or rotation.

    Args:
        height: number of rows.
        width: number of columns.
        operation: number of each image's operation, (N,).
        uniform: uniform numbers in [0, 1), (N, 3), for the size, the sign and the axis of the operation.
    """
    down = torch.arange(height, device=uniform.device) - (height - 1) / 2
    across = torch.arange(width, device=uniform.device) - (width - 1) / 2
    size, side = uniform[:, 0], torch.where(uniform[:, 1] < 0.5, -1.0, 1.0)
    slope = torch.where(operation == SHEAR, side * (_SHEAR[0] + (_SHEAR[1] - _SHEAR[0]) * size), 0.0)
    degrees = side * (_DEGREES[0] + (_DEGREES[1] - _DEGREES[0]) * size)
    angle = torch.where(operation == ROTATE, degrees.deg2rad(), 0.0)
    upright = uniform[:, 2] < 0.5
    sine, cosine = angle.sin(), angle.cos()
    by_column = torch.where(upright, slope, 0.0) - sine
    by_row = torch.where(upright, 0.0, slope) + sine

    def place(own: Tensor, other: Tensor, factor: Tensor, length: int) -> Tensor:
        moved = cosine[:, None, None] * own + factor[:, None, None] * other
        return (moved + (length - 1) / 2).round().long()

    row = place(down[None, :, None], across[None, None, :], by_column, height)
    return row, place(across[None, None, :], down[None, :, None], by_row, width)


def coloured(x: Tensor, operation: Tensor, uniform: Tensor) -> Tensor:
    """Apply the colour operations; images with other operations are unchanged.

    Args:
        x: images in [0, 1], (N, C, H, W).
        operation: number of each image's operation, (N,).
        uniform: uniform numbers in [0, 1), (N,), for the blending factor.
    """
    weights = _LUMINANCE if x.shape[1] == 3 else (1 / x.shape[1],) * x.shape[1]
    grey = torch.stack([weight * x[:, channel] for channel, weight in enumerate(weights)], 1).sum(1, keepdim=True)
    bases = (grey.expand_as(x), torch.zeros_like(x), grey.mean((1, 2, 3), keepdim=True).expand_as(x), _smoothed(x))
    result = x
    for number, (base, (low, high)) in enumerate(zip(bases, _FACTORS, strict=True)):
        factor = (low + (high - low) * uniform)[:, None, None, None]
        result = torch.where(_is(operation, number), (base + factor * (x - base)).clamp(0, 1), result)
    result = torch.where(_is(operation, AUTOCONTRAST), _autocontrast(x), result)
    return torch.where(_is(operation, EQUALISE), _equalised(x), result)


def _is(operation: Tensor, number: int) -> Tensor:
    return (operation == number)[:, None, None, None]


def _smoothed(x: Tensor) -> Tensor:
    """A 3x3 mean with weight 5 at the centre; border pixels are unchanged."""
    channels = x.shape[1]
    kernel = x.new_ones(3, 3)
    kernel[1, 1] = 5
    inner = F.conv2d(x, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    result = x.clone()
    result[:, :, 1:-1, 1:-1] = inner
    return result


def _autocontrast(x: Tensor) -> Tensor:
    """Each channel stretched to [0, 1]; constant channels are unchanged."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    span = high - low
    return torch.where(span > 0, (x - low) / torch.where(span > 0, span, 1.0), x)


def _equalised(x: Tensor) -> Tensor:
    """Histogram equalisation per channel; constant channels are unchanged."""
    level = x.flatten(2).mul(255).round().long()
    count = torch.zeros(*level.shape[:2], 256, device=x.device).scatter_add_(2, level, torch.ones_like(level).float())
    below = count.cumsum(2)
    first = below.gather(2, level.amin(2, keepdim=True))  # count of the lowest level
    rest = level.shape[2] - first
    ranked = (below.gather(2, level) - first) / rest.clamp_min(1)
    return torch.where(rest > 0, ranked.to(x.dtype), x.flatten(2)).view_as(x)
