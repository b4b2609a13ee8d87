"""Random crops and flips, on the device, each image by its own draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import pydantic
import torch
from torch import Tensor

from classwise.core.config import configurable
from classwise.core.description import Described
from classwise.core.errors import ClasswiseError
from classwise.core.rng import CounterRNG


def crop_flip(
    x: Tensor,
    index: Tensor,
    rng: CounterRNG,
    padding: int = 4,
    flip: bool = True,
    border: Literal["reflect", "zeros"] = "reflect",
) -> Tensor:
    """Shift each image by up to ``padding`` pixels each way and mirror every second one.

    The same as padding by ``padding``, cropping a random window of the old size, and flipping left to right with
    probability one half, as one gather. What happens to an image depends on ``rng`` and its index alone.

    Args:
        x: (N, C, H, W), any type, any device.
        index: (N,) int64, the number of each image in its data set.
        rng: the random draws of this epoch.
        padding: the largest shift, in pixels.
        flip: whether to mirror.
        border: what appears at the edges: the image mirrored there, or zeros.

    Returns:
        (N, C, H, W) of the type of ``x``, in channels-last memory order.

    Raises:
        ClasswiseError: if ``padding`` is negative, or not smaller than the image (reflection needs that).
    """
    count, _, height, width = x.shape
    if padding < 0 or (border == "reflect" and padding >= min(height, width)):
        raise ClasswiseError(
            f"padding {padding} does not fit images of {height}x{width}; it should be 0 to {min(height, width) - 1}"
        )
    shift = rng.child("crop").integers(index, (2,), 2 * padding + 1) - padding
    down = _places(height, shift[:, :1])
    across = _places(width, shift[:, 1:])
    if flip:
        mirror = rng.child("flip").integers(index, (1,), 2).bool()
        across = torch.where(mirror, across.flip(1), across)
    image = torch.arange(count, device=x.device)[:, None, None]
    # Indices around a slice put the channels last, so the result is channels-last without a copy.
    moved = x[image, :, _fold(down, height)[:, :, None], _fold(across, width)[:, None, :]]
    if border == "zeros":
        inside = ((down >= 0) & (down < height))[:, :, None] & ((across >= 0) & (across < width))[:, None, :]
        moved = moved * inside[..., None]
    return moved.permute(0, 3, 1, 2)


def _places(length: int, shift: Tensor) -> Tensor:
    """(N, length): which place of the unbounded line each place of the result shows."""
    return torch.arange(length, device=shift.device)[None, :] + shift


def _fold(place: Tensor, length: int) -> Tensor:
    """Mirror places outside 0..length-1 at the first and the last pixel, which are not repeated."""
    place = place.abs()
    return torch.where(place < length, place, 2 * (length - 1) - place).clamp_(min=0)


Padding = Annotated[int, pydantic.Field(ge=0)]
"""The largest shift, in pixels."""


@configurable
class Augmentation(Described, ABC):
    """What a training set-up does to the images of a batch."""

    @abstractmethod
    def __call__(self, x: Tensor, index: Tensor, rng: CounterRNG) -> Tensor:
        """(N, C, H, W) images, each changed by its own draws."""


@configurable
class Plain(Augmentation):
    """No augmentation."""

    source = ()
    example = "none"

    def __call__(self, x: Tensor, index: Tensor, rng: CounterRNG) -> Tensor:  # noqa: ARG002
        """The images as they are."""
        return x


@configurable
class Crop(Augmentation):
    """A random crop of the padded image, for images whose mirror image is something else, such as digits."""

    source = ()
    example = "crop:padding=4"

    padding: Padding = 4
    border: Literal["reflect", "zeros"] = "reflect"

    def __call__(self, x: Tensor, index: Tensor, rng: CounterRNG) -> Tensor:
        """The shifted images."""
        return crop_flip(x, index, rng, self.padding, flip=False, border=self.border)


@configurable
class CropFlip(Augmentation):
    """A random crop of the padded image, mirrored half of the time: the usual one for CIFAR."""

    source = ()
    example = "crop-flip:padding=4"

    padding: Padding = 4
    border: Literal["reflect", "zeros"] = "reflect"

    def __call__(self, x: Tensor, index: Tensor, rng: CounterRNG) -> Tensor:
        """The shifted and mirrored images."""
        return crop_flip(x, index, rng, self.padding, flip=True, border=self.border)
