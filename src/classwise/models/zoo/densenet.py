"""DenseNet-BC for small images: Huang et al., Densely Connected Convolutional Networks (2017)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.models.base import Classifier, channels, pooled


class DenseLayer(nn.Module):
    """BN, ReLU, 1x1 convolution with 4 * growth channels, then BN, ReLU, 3x3 convolution with growth channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, growth + inputs, H, W), the new channels first."""
        out = self.conv1(F.relu(self.bn1(x), inplace=True))
        return torch.cat([self.conv2(F.relu(self.bn2(out), inplace=True)), x], 1)


class Transition(nn.Module):
    """BN, ReLU, 1x1 convolution and 2x2 average pooling; a last odd row or column is pooled separately."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, ceil(H/2), ceil(W/2))."""
        return F.avg_pool2d(self.conv(F.relu(self.bn(x), inplace=True)), 2, ceil_mode=True)


class DenseNet(Classifier):
    """DenseNet for small images, with a 3x3 convolution of stride 1 as first layer; DenseNet-121 by default.

    The state-dict keys are those of kuangliu's pytorch-cifar. At width 1, 10 classes and 3 channels: 6,956,298
    parameters for DenseNet-121 and 12,493,322 for DenseNet-169. The width multiplies the growth rate.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        blocks: Sequence[int] = (6, 12, 24, 16),
        growth: int = 32,
    ) -> None:
        super().__init__()
        growth = channels(growth, width)
        size = 2 * growth
        self.conv1 = nn.Conv2d(in_channels, size, 3, padding=1, bias=False)
        for number, count in enumerate(blocks, 1):
            self.add_module(
                f"dense{number}", nn.Sequential(*(DenseLayer(size + i * growth, growth) for i in range(count)))
            )
            size += count * growth
            if number < len(blocks):
                self.add_module(f"trans{number}", Transition(size, size // 2))
                size //= 2
        self.bn = nn.BatchNorm2d(size)
        self.linear = nn.Linear(size, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """The average-pooled last feature map, (N, 1024 * width) for DenseNet-121."""
        x = self.conv1(x)
        for name, layer in self.named_children():
            if name.startswith(("dense", "trans")):
                x = layer(x)
        return pooled(F.relu(self.bn(x), inplace=True))


densenet121 = partial(DenseNet, blocks=(6, 12, 24, 16))
densenet169 = partial(DenseNet, blocks=(6, 12, 32, 32))
