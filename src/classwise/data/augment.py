"""Random crops and flips on the device, with random numbers per image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import pydantic
import torch
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable
from classwise.core.settings.description import Described


def crop_flip(
    x: Tensor,
    index: Tensor,
    rng: CounterRNG,
    padding: int = 4,
    flip: bool = True,
    border: Literal["reflect", "zeros"] = "reflect",
) -> Tensor:
    """Pad each image, crop a random window of the original size, and flip it horizontally with probability 0.5.

    Implemented as one gather. The result for an image depends only on ``rng`` and its index.

    Args:
        x: images (N, C, H, W), any data type, any device.
        index: index of each image in its data set, int64 (N,).
        rng: random numbers of the epoch.
        padding: padding on each side, in pixels.
        flip: whether to flip.
        border: padding mode, reflection or zeros.

    Returns:
        Images (N, C, H, W) of the data type of ``x``, in channels-last memory format.

    Raises:
        ClasswiseError: if ``padding`` is negative or, for reflection, not smaller than the image.
    """
    count, _, height, width = x.shape
    if padding < 0 or (border == "reflect" and padding >= min(height, width)):
        raise ClasswiseError(f"padding {padding}: must be 0 to {min(height, width) - 1} for images of {height}x{width}")
    shift = rng.child("crop").integers(index, (2,), 2 * padding + 1) - padding
    rows = _source_positions(height, shift[:, :1])
    columns = _source_positions(width, shift[:, 1:])
    if flip:
        flipped = rng.child("flip").integers(index, (1,), 2).bool()
        columns = torch.where(flipped, columns.flip(1), columns)
    image = torch.arange(count, device=x.device)[:, None, None]
    # Indices around a slice put the channels last, so the result is channels-last without a copy.
    cropped = x[image, :, _reflected(rows, height)[:, :, None], _reflected(columns, width)[:, None, :]]
    if border == "zeros":
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        cropped = cropped * inside[..., None]
    return cropped.permute(0, 3, 1, 2)


def _source_positions(length: int, shift: Tensor) -> Tensor:
    """Position in the source, (N, length), of each pixel of the result; may lie outside 0..length-1."""
    return torch.arange(length, device=shift.device)[None, :] + shift


def _reflected(position: Tensor, length: int) -> Tensor:
    """Positions outside 0..length-1 reflected at the first and the last pixel, which are not repeated."""
    position = position.abs()
    return torch.where(position < length, position, 2 * (length - 1) - position).clamp_(min=0)


@configurable
class Augmentation(Described, ABC):
    """Base class of augmentations of training batches."""

    @abstractmethod
    def __call__(self, x: Tensor, index: Tensor, rng: CounterRNG) -> Tensor:
        """Augment images (N, C, H, W), each with its own random numbers."""


@configurable
class Plain(Augmentation):
    """No augmentation."""

    source = ()
    example = "none"

    def __call__(self, x: Tensor, index: Tensor, rng: CounterRNG) -> Tensor:  # noqa: ARG002
        """The images, unmodified."""
        return x


@configurable
class Crop(Augmentation):
    """A random crop of the padded image without flips, for images such as digits."""

    source = ()
    example = "crop:padding=4"

    padding: Annotated[int, pydantic.Field(ge=0)] = 4
    border: Literal["reflect", "zeros"] = "reflect"
    flips: ClassVar[bool] = False

    def __call__(self, x: Tensor, index: Tensor, rng: CounterRNG) -> Tensor:
        """Crop the images, and flip them at random if the class does."""
        return crop_flip(x, index, rng, self.padding, self.flips, self.border)


@configurable
class CropFlip(Crop):
    """A random crop of the padded image and a random horizontal flip: the standard augmentation for CIFAR."""

    source = ()
    example = "crop-flip:padding=4"
    flips = True
