"""VGG for small images: Simonyan and Zisserman, Very Deep Convolutional Networks (2015), with batch normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from classwise.models.base import Classifier, channels, pooled, start_for_relu

_SIZES = (64, 128, 256, 512, 512)


class VGG(Classifier):
    """VGG for small images: five stages of 3x3 convolutions with 2x2 max pooling, and one linear layer.

    As in kuangliu's pytorch-cifar, one linear layer replaces the three of the paper. The number of parameters is the
    same as there: 14,728,266 (VGG-16) and 20,040,522 (VGG-19) at width 1, 10 classes and 3 channels. A feature map of
    one row or column is not pooled, so images may be smaller than 32x32.
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
            layers.append(nn.MaxPool2d(2, ceil_mode=True))  # a last odd row or column is pooled separately
        self.layers = nn.Sequential(*layers)
        self.linear = nn.Linear(inputs, num_classes)
        start_for_relu(self)

    def features(self, x: Tensor) -> Tensor:
        """The average-pooled last feature map, (N, 512 * width)."""
        return pooled(self.layers(x))


vgg16 = partial(VGG, convolutions=(2, 2, 3, 3, 3))
vgg19 = partial(VGG, convolutions=(2, 2, 4, 4, 4))
