"""VGG for small images: Simonyan and Zisserman, Very Deep Convolutional Networks (2015), with batch normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.models.base import Classifier, channels, pooled, start_for_relu

_SIZES = (64, 128, 256, 512, 512)


class VGG(Classifier):
    """Five stages of 3x3 convolutions, each with a 2x2 maximum behind it, and one linear layer.

    The paper's three wide linear layers are left out, as in kuangliu's pytorch-cifar, whose parameters it has:
    14,728,266 (VGG-16) and 20,040,522 (VGG-19) at width 1, 10 classes and 3 channels. A feature map of one row or
    column is not halved, so that images may be smaller than 32x32.
    """

    renamed: ClassVar[Mapping[str, str]] = {r"^features\.": "layers.", r"^classifier\.": "linear."}

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        convolutions: Sequence[int] = (2, 2, 3, 3, 3),
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = in_channels
        for size, count in zip(_SIZES, convolutions, strict=True):
            for _ in range(count):
                outputs = channels(size, width)
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
                inputs = outputs
            layers.append(Halved())
        self.layers = nn.Sequential(*layers)
        self.linear = nn.Linear(inputs, num_classes)
        start_for_relu(self)

    def features(self, x: Tensor) -> Tensor:
        """The mean of the last feature map: (N, 512 * width)."""
        return pooled(self.layers(x))


class Halved(nn.Module):
    """The maximum of each 2x2 block; an odd last row or column keeps its own."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, ceil(H/2), ceil(W/2))."""
        return F.max_pool2d(x, 2, ceil_mode=True)


vgg16 = partial(VGG, convolutions=(2, 2, 3, 3, 3))
vgg19 = partial(VGG, convolutions=(2, 2, 4, 4, 4))
