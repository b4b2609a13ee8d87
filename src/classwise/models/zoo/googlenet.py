"""GoogLeNet for small images: Szegedy et al., Going Deeper with Convolutions (2015), with batch normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.models.base import Classifier, channels, pooled, start_for_relu

_MODULES = {
    "a3": (64, 96, 128, 16, 32, 32),
    "b3": (128, 128, 192, 32, 96, 64),
    "a4": (192, 96, 208, 16, 48, 64),
    "b4": (160, 112, 224, 24, 64, 64),
    "c4": (128, 128, 256, 24, 64, 64),
    "d4": (112, 144, 288, 32, 64, 64),
    "e4": (256, 160, 320, 32, 128, 128),
    "a5": (256, 160, 320, 32, 128, 128),
    "b5": (384, 192, 384, 48, 128, 128),
}
"""Channels of each module (Table 1 of the paper): 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pool projection."""


class Inception(nn.Module):
    """Inception module with four branches; two 3x3 convolutions replace the 5x5 convolution."""

    def __init__(self, inputs: int, sizes: list[int]) -> None:
        super().__init__()
        one, three_in, three, five_in, five, pool = sizes
        self.b1 = nn.Sequential(*_convolution(inputs, one, 1))
        self.b2 = nn.Sequential(*_convolution(inputs, three_in, 1), *_convolution(three_in, three, 3))
        last = _convolution(five, five, 3)
        self.b3 = nn.Sequential(*_convolution(inputs, five_in, 1), *_convolution(five_in, five, 3), *last)
        self.b4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *_convolution(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, one + three + five + pool, H, W)."""
        return torch.cat([self.b1(x), self.b2(x), self.b3(x), self.b4(x)], 1)


def _convolution(inputs: int, outputs: int, size: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, padding=size // 2)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


class GoogLeNet(Classifier):
    """GoogLeNet for small images: a 3x3 convolution of stride 1 and nine inception modules, no auxiliary classifiers.

    The state-dict keys are those of kuangliu's pytorch-cifar. 6,166,250 parameters at width 1, 10 classes and 3
    channels.
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        size = channels(192, width)
        self.pre_layers = nn.Sequential(*_convolution(in_channels, size, 3))
        for name, counts in _MODULES.items():
            sizes = [channels(count, width) for count in counts]
            self.add_module(name, Inception(size, sizes))
            size = sizes[0] + sizes[2] + sizes[4] + sizes[5]
        self.linear = nn.Linear(size, num_classes)
        start_for_relu(self)

    def features(self, x: Tensor) -> Tensor:
        """The average-pooled last feature map, (N, 1024 * width)."""
        x = self.pre_layers(x)
        for name in _MODULES:
            if name in ("a4", "a5"):
                x = F.max_pool2d(x, 3, stride=2, padding=1)
            x = getattr(self, name)(x)
        return pooled(x)
