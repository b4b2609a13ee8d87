"""Preparation of images as a layer of a model: resizing, crops, and the order of the channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.models.base import Wrapper

FILTERS = {"nearest": "nearest-exact", "bilinear": "bilinear", "bicubic": "bicubic"}
"""The mode of `torch.nn.functional.interpolate` for each name of a filter."""

Step = Callable[[Tensor], Tensor]
"""A function of images (N, C, H, W) in [0, 1]. ``str(step)`` continues the sentence "images are"."""


@dataclass(frozen=True)
class Resize:
    """Resizing with the filters of Pillow, antialiased, without rounding to 8 bits.

    Attributes:
        size: height and width; or the length of the shorter side, with the aspect ratio unchanged.
        filter: a name in `FILTERS`.
        longest: with the length of a shorter side, the largest length of the longer one.
        within: whether the images keep their aspect ratio and become as large as ``size`` permits.
        multiple: height and width are rounded up to a multiple of this.
    """

    size: tuple[int, int] | int
    filter: str = "bilinear"
    longest: int | None = None
    within: bool = False
    multiple: int = 1

    def __call__(self, x: Tensor) -> Tensor:
        """Images of the new size; images that have it are not changed."""
        height, width = self.size_of(x.shape[-2], x.shape[-1])
        if self.filter != "bicubic":
            return self._interpolated(x, height, width)
        # Its values may leave [0, 1]. Pillow resizes the rows first, and clips the values after each direction.
        return self._interpolated(self._interpolated(x, x.shape[-2], width).clamp(0, 1), height, width).clamp(0, 1)

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of resized images of this height and width."""
        shorter, longer = sorted((height, width))
        if isinstance(self.size, int):
            side, exact = self.size, float(self.size)
            if self.longest is not None and longer / shorter * side > self.longest:
                exact = self.longest * shorter / longer
                side = round(exact)
            new = (side, longer if side == shorter else int(exact * longer / shorter))
            new = new if height < width else new[::-1]
        elif self.within:
            scale = min(self.size[0] / height, self.size[1] / width)
            new = (int(height * scale), int(width * scale))
        else:
            new = self.size
        return -(-new[0] // self.multiple) * self.multiple, -(-new[1] // self.multiple) * self.multiple

    def _interpolated(self, x: Tensor, height: int, width: int) -> Tensor:
        if (x.shape[-2], x.shape[-1]) == (height, width):
            return x
        mode = FILTERS[self.filter]
        return F.interpolate(x, size=(height, width), mode=mode, antialias=self.filter != "nearest")

    def __str__(self) -> str:
        if isinstance(self.size, int):
            most = "" if self.longest is None else f", the longer to at most {self.longest}"
            target = f"{self.size} on the shorter side{most}"
        else:
            target = f"{'at most ' if self.within else ''}{self.size[0]} x {self.size[1]}"
        return f"resized to {target} ({self.filter})"


@dataclass(frozen=True)
class CenterCrop:
    """A crop at the centre, padded with zeros where the images are smaller."""

    height: int
    width: int

    def __call__(self, x: Tensor) -> Tensor:
        """Images of this height and width."""
        top, left = -((x.shape[-2] - self.height) // 2), -((x.shape[-1] - self.width) // 2)
        bottom, right = self.height - x.shape[-2] - top, self.width - x.shape[-1] - left
        return F.pad(x, (left, right, top, bottom)) if any((left, right, top, bottom)) else x

    def __str__(self) -> str:
        return f"cropped to {self.height} x {self.width}"


@dataclass(frozen=True)
class RelativeCrop:
    """A crop at the centre whose height and width are these parts of the shorter side."""

    height: float
    width: float

    def __call__(self, x: Tensor) -> Tensor:
        """The crop of the images."""
        shorter = min(x.shape[-2:])
        return CenterCrop(int(self.height * shorter), int(self.width * shorter))(x)

    def __str__(self) -> str:
        return f"cropped to {self.height:.4g} x {self.width:.4g} of the shorter side"


@dataclass(frozen=True)
class ReverseChannels:
    """The channels in reverse order: RGB as BGR."""

    def __call__(self, x: Tensor) -> Tensor:
        """Images with the last channel first."""
        return x.flip(1)

    def __str__(self) -> str:
        return "converted from RGB to BGR"


class Resized(Wrapper):
    """A model whose images are resized, cropped and otherwise prepared first.

    Attacks perturb the images before they are prepared; gradients pass through all steps.

    Args:
        model: a classifier of prepared images.
        steps: the steps, in this order.
    """

    def __init__(self, model: nn.Module, steps: Sequence[Step]) -> None:
        super().__init__(model)
        self.steps = tuple(steps)

    def forward(self, x: Tensor) -> Tensor:
        """Output of the inner model for images (N, C, H, W) in [0, 1] of any size."""
        for step in self.steps:
            x = step(x)
        out: Tensor = self.model(x)
        return out
