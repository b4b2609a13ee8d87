"""IDBH-weak (Li and Spratling, ICLR 2023): an augmentation that adversarial training gains from, on the device."""

from __future__ import annotations

import math
from typing import Annotated

import pydantic
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from classwise.core.config import Share, configurable
from classwise.core.rng import CounterRNG
from classwise.data.augment import Augmentation

COLOUR, BRIGHTNESS, CONTRAST, SHARPNESS, AUTOCONTRAST, EQUALISE, SHEAR, ROTATE = range(8)
OPERATIONS = 8
_LUMINANCE = (0.299, 0.587, 0.114)
_FACTORS = ((0.1, 1.9), (0.5, 1.9), (0.5, 1.9), (0.1, 1.9))
"""How far the first four operations go: 0 is their base, 1 the image, above 1 away from the base."""
_SHEAR = (0.05, 0.15)
_DEGREES = (1.0, 10.0)
_AREA = (0.02, 0.33)
_ASPECT = (0.3, 3.3)


@configurable
class IDBHWeak(Augmentation):
    """Flip, crop-shift, one of eight colour or shape operations, and erasing, each image by its own draws.

    - Mirrored half of the time.
    - Crop-shift: n is even over 0..``shift``; n rows and columns together are cut off the borders, split at random, and
      the rest is put down anywhere, on zeros. Of images with a side below 3 ``shift``, at most a third of it is cut.
    - One operation, each with probability 1/8: saturation, brightness, contrast, sharpness (blends of the image with
      its grey image, with 0, with its mean grey, with its smoothed self, by a factor of at most 1.9), autocontrast,
      equalisation (each channel by itself), shear by 0.05 to 0.15 along either axis, rotation by 1 to 10 degrees.
    - Erasing with probability ``erase``: a rectangle of 2 to 33 % of the area and an aspect of 0.3 to 3.3 becomes 0.

    Operations and ranges are those of the public code; the draws are ours, shapes move to the nearest pixel as there,
    and a rectangle that would not fit is cut to the image instead of being drawn again.

    Args:
        shift: the most rows and columns that are cut.
        erase: how often a rectangle is erased.
    """

    source = ("li2023data",)
    changes = ("data",)
    example = "idbh-weak"

    shift: Annotated[int, pydantic.Field(ge=0)] = 10
    erase: Share = 0.5

    def __call__(self, x: Tensor, index: Tensor, rng: CounterRNG) -> Tensor:
        """(N, C, H, W) images of the type of ``x``, uint8 or float in [0, 1]."""
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
        pixels = moved.float().div(255) if x.dtype == torch.uint8 else moved
        pixels = pixels * (inside & kept)[:, None]
        pixels = coloured(pixels, operation, rng.child("factor").uniform(index))
        pixels = pixels * ~self._erased(height, width, index, rng.child("erase"))[:, None]
        return pixels.mul(255).round_().to(torch.uint8) if x.dtype == torch.uint8 else pixels

    def _erased(self, height: int, width: int, index: Tensor, rng: CounterRNG) -> Tensor:
        """(N, H, W): what becomes 0."""
        happens, area, aspect, down, across = rng.uniform(index, (5, 1, 1)).unbind(1)
        area = (_AREA[0] + (_AREA[1] - _AREA[0]) * area) * height * width
        low, high = (math.log(value) for value in _ASPECT)
        aspect = (low + (high - low) * aspect).exp()
        tall = (area * aspect).sqrt().round().clamp(1, height)
        wide = (area / aspect).sqrt().round().clamp(1, width)
        top, left = _pick(down, height - tall), _pick(across, width - wide)
        rows = torch.arange(height, device=index.device)[None, :, None]
        columns = torch.arange(width, device=index.device)[None, None, :]
        hit = (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)
        return hit & (happens < self.erase)


def _pick(draw: Tensor, most: Tensor) -> Tensor:
    """An integer, even over 0..most, from a draw in [0, 1)."""
    return (draw * (most + 1)).floor().minimum(most)


def _within(place: Tensor, length: int) -> Tensor:
    return (place >= 0) & (place < length)


def crop_shifted(
    row: Tensor, column: Tensor, height: int, width: int, shift: int, rng: CounterRNG, index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Where the pixels at ``row``, ``column`` (N, H, W) come from before a crop-shift, and which come from anywhere."""
    total, share, *places = rng.uniform(index, (6, 1, 1)).unbind(1)
    cut = _pick(total, torch.full_like(total, shift))
    rows = _pick(share, cut)
    columns = cut - rows
    top, left, down, across = (_pick(place, most) for place, most in zip(places, [rows, columns] * 2, strict=True))
    row, column = row - down.long(), column - across.long()
    kept = (row >= 0) & (row < height - rows) & (column >= 0) & (column < width - columns)
    return row + top.long(), column + left.long(), kept


def shaped(height: int, width: int, operation: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The row and the column, (N, H, W) int64, that each pixel shows after the shear or the rotation, if it is one.

    Args:
        height: rows.
        width: columns.
        operation: (N,) the number of each image's operation.
        uniform: (N, 3) in [0, 1): how far, to which side, and along which axis a shear goes.
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


def coloured(x: Tensor, operation: Tensor, draw: Tensor) -> Tensor:
    """The images after their colour operation, if it is one, in [0, 1].

    Args:
        x: (N, C, H, W) in [0, 1].
        operation: (N,) the number of each image's operation.
        draw: (N,) in [0, 1), how far the blends go.
    """
    weights = _LUMINANCE if x.shape[1] == 3 else (1 / x.shape[1],) * x.shape[1]
    grey = torch.stack([weight * x[:, channel] for channel, weight in enumerate(weights)], 1).sum(1, keepdim=True)
    bases = (grey.expand_as(x), torch.zeros_like(x), grey.mean((1, 2, 3), keepdim=True).expand_as(x), _smoothed(x))
    result = x
    for number, (base, (low, high)) in enumerate(zip(bases, _FACTORS, strict=True)):
        factor = (low + (high - low) * draw)[:, None, None, None]
        result = torch.where(_is(operation, number), (base + factor * (x - base)).clamp(0, 1), result)
    result = torch.where(_is(operation, AUTOCONTRAST), _autocontrast(x), result)
    return torch.where(_is(operation, EQUALISE), _equalised(x), result)


def _is(operation: Tensor, number: int) -> Tensor:
    return (operation == number)[:, None, None, None]


def _smoothed(x: Tensor) -> Tensor:
    """A 3x3 mean in which the middle counts five times; the border stays."""
    channels = x.shape[1]
    kernel = x.new_ones(3, 3)
    kernel[1, 1] = 5
    inner = F.conv2d(x, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    result = x.clone()
    result[:, :, 1:-1, 1:-1] = inner
    return result


def _autocontrast(x: Tensor) -> Tensor:
    """Each channel stretched to [0, 1]; a constant one stays."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    span = high - low
    return torch.where(span > 0, (x - low) / torch.where(span > 0, span, 1.0), x)


def _equalised(x: Tensor) -> Tensor:
    """Each channel's levels by their rank, so that all are as frequent; a constant channel stays."""
    level = x.flatten(2).mul(255).round().long()
    count = torch.zeros(*level.shape[:2], 256, device=x.device).scatter_add_(2, level, torch.ones_like(level).float())
    below = count.cumsum(2)
    first = below.gather(2, level.amin(2, keepdim=True))  # how many have the lowest level
    rest = level.shape[2] - first
    ranked = (below.gather(2, level) - first) / rest.clamp_min(1)
    return torch.where(rest > 0, ranked.to(x.dtype), x.flatten(2)).view_as(x)
