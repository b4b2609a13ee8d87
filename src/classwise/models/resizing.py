"""Resizing as a layer of a model that needs images of one size."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.models.base import Wrapper


class Resized(Wrapper):
    """A model with resized inputs: bilinear interpolation, antialiased, without a crop.

    Images of the model's size are not changed. Attacks perturb the images before they are resized.

    Args:
        model: a classifier of images of one size.
        size: height and width of these images.
    """

    def __init__(self, model: nn.Module, size: tuple[int, int]) -> None:
        super().__init__(model)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Output of the inner model for images (N, C, H, W) of any size."""
        if x.shape[-2:] != self.size:
            x = F.interpolate(x, size=self.size, mode="bilinear", antialias=True)
        out: Tensor = self.model(x)
        return out
