"""GoogLeNet (Szegedy et al., 2015), with batch normalisation, and Inception-v3 (2016), both for small images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import handle_torch_function, has_torch_function_unary

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


Size = int | tuple[int, int]


class Layer(NamedTuple):
    """One convolution of a branch: channels at width 1, kernel size, and whether its stride is 2."""

    outputs: int
    size: Size = 1
    halves: bool = False


class Convolution(nn.Module):
    """Convolution, BN and ReLU; with stride 2 there is no padding, unless the map is smaller than the kernel."""

    def __init__(self, inputs: int, outputs: int, size: Size, *, halves: bool = False, border: bool = True) -> None:
        super().__init__()
        sides = (size, size) if isinstance(size, int) else size
        padding = (sides[0] // 2, sides[1] // 2) if border and not halves else (0, 0)
        self.conv = nn.Conv2d(inputs, outputs, sides, stride=2 if halves else 1, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.bordered = border and not halves

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H', W')."""
        return F.relu(self.bn(self.conv(x if self.bordered else _at_least_three(x))), inplace=True)


class Halved(nn.Module):
    """3x3 max or average pooling with stride 2."""

    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, (H-1)//2, (W-1)//2)."""
        x = _at_least_three(x)
        return F.avg_pool2d(x, 3, stride=2) if self.mean else F.max_pool2d(x, 3, stride=2)


def _at_least_three(x: Tensor) -> Tensor:
    if has_torch_function_unary(x):  # traced symbolically: one call, since the size is unknown
        padded: Tensor = handle_torch_function(_at_least_three, (x,), x)
        return padded
    return F.pad(x, (1, 1, 1, 1)) if min(x.shape[-2:]) < 3 else x


class Side(nn.Module):
    """Convolutions, then a 1x3 and a 3x1 convolution in parallel."""

    def __init__(self, inputs: int, steps: Sequence[Layer], outputs: int) -> None:
        super().__init__()
        self.first = branch(inputs, steps)
        size = steps[-1].outputs
        self.a = Convolution(size, outputs, (1, 3))
        self.b = Convolution(size, outputs, (3, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, 2 * outputs, H, W)."""
        x = self.first(x)
        return torch.cat([self.a(x), self.b(x)], 1)


def branch(inputs: int, steps: Sequence[Layer]) -> nn.Sequential:
    """A sequence of convolutions."""
    layers = []
    for outputs, size, halves in steps:
        layers.append(Convolution(inputs, outputs, size, halves=halves))
        inputs = outputs
    return nn.Sequential(*layers)


class Mixed(nn.Module):
    """Parallel branches, concatenated along the channels."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to the concatenated channels of all branches."""
        return torch.cat([module(x) for module in self.branches], 1)


class InceptionV3(Classifier):
    """Inception-v3 for small images: a stem with stride 1 and the eleven modules of the paper, no auxiliary classifier.

    As in weiaicunzai's pytorch-cifar100, the stem has neither strides nor pooling, and the last reduction uses average
    pooling. The number of parameters is that of the original without its auxiliary classifier: 21,785,568 plus the last
    layer, at width 1 and 3 channels. There is no dropout before the last layer, because its masks would come from
    torch's global generator.
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        self._width = width
        stem = [self._count(size) for size in (32, 32, 64, 80, 192)]
        self.stem = nn.Sequential(
            Convolution(in_channels, stem[0], 3),
            Convolution(stem[0], stem[1], 3),
            Convolution(stem[1], stem[2], 3),
            Convolution(stem[2], stem[3], 1),
            Convolution(stem[3], stem[4], 3, border=False),
        )
        self._size = stem[4]
        modules = [self._wide(pool) for pool in (32, 64, 64)]
        modules.append(self._reduction([[Layer(384, 3, halves=True)], _to_half(64, 96)], mean=False))
        modules += [self._factorised(inner) for inner in (128, 160, 160, 192)]
        long = [Layer(192), Layer(192, (1, 7)), Layer(192, (7, 1)), Layer(192, 3, halves=True)]
        modules.append(self._reduction([[Layer(192), Layer(320, 3, halves=True)], long], mean=True))
        modules += [self._spread() for _ in range(2)]
        self.mixed = nn.Sequential(*modules)
        self.linear = nn.Linear(self._size, num_classes)
        start_for_relu(self)

    def features(self, x: Tensor) -> Tensor:
        """The average-pooled last feature map, (N, 2048 * width)."""
        return pooled(self.mixed(self.stem(x)))

    def _count(self, outputs: int) -> int:
        return channels(outputs, self._width)

    def _branch(self, *steps: Layer) -> nn.Sequential:
        return branch(self._size, self._scaled(steps))

    def _scaled(self, steps: Sequence[Layer]) -> list[Layer]:
        return [step._replace(outputs=self._count(step.outputs)) for step in steps]

    def _pool(self, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), *self._branch(Layer(outputs)))

    def _wide(self, pool: int) -> Mixed:
        """Figure 5 of the paper: 1x1, 5x5, two 3x3, pool."""
        branches = (
            self._branch(Layer(64)),
            self._branch(Layer(48), Layer(64, 5)),
            self._branch(Layer(64), Layer(96, 3), Layer(96, 3)),
            self._pool(pool),
        )
        return self._mixed(branches, 64, 64, 96, pool)

    def _reduction(self, branches: Sequence[Sequence[Layer]], *, mean: bool) -> Mixed:
        """Figure 10: branches of stride 2 and a pooling branch."""
        size = self._size + sum(self._count(steps[-1].outputs) for steps in branches)
        mixed = Mixed([*(self._branch(*steps) for steps in branches), Halved(mean=mean)])
        self._size = size
        return mixed

    def _factorised(self, inner: int) -> Mixed:
        """Figure 6: factorised 7x7 convolutions."""
        short = (Layer(inner), Layer(inner, (1, 7)), Layer(192, (7, 1)))
        long = (Layer(inner), Layer(inner, (7, 1)), Layer(inner, (1, 7)), Layer(inner, (7, 1)), Layer(192, (1, 7)))
        branches = (self._branch(Layer(192)), self._branch(*short), self._branch(*long), self._pool(192))
        return self._mixed(branches, 192, 192, 192, 192)

    def _spread(self) -> Mixed:
        """Figure 7: 3x3 convolutions factorised into parallel 1x3 and 3x1."""
        side = self._count(384)
        branches = (
            self._branch(Layer(320)),
            Side(self._size, self._scaled([Layer(384)]), side),
            Side(self._size, self._scaled([Layer(448), Layer(384, 3)]), side),
            self._pool(192),
        )
        return self._mixed(branches, 320, 384, 384, 384, 384, 192)

    def _mixed(self, branches: Sequence[nn.Module], *outputs: int) -> Mixed:
        self._size = sum(self._count(count) for count in outputs)
        return Mixed(branches)


def _to_half(first: int, then: int) -> list[Layer]:
    return [Layer(first), Layer(then, 3), Layer(then, 3, halves=True)]
