"""Inception-v3 for small images: Szegedy et al., Rethinking the Inception Architecture for Computer Vision (2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812

from classwise.models.base import Classifier, channels, pooled, start_for_relu

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


@fx.wrap
def _at_least_three(x: Tensor) -> Tensor:
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
