"""Residual networks: He et al., Deep Residual Learning for Image Recognition (2016).

Wide ones with bottleneck blocks: Zagoruyko and Komodakis, Wide Residual Networks (2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.errors import ClasswiseError
from classwise.models.base import Classifier, channels, pooled, start_for_relu

SMALL, LARGE = "3x3", "7x7"
"""The stems for small images (a 3x3 convolution) and for large ones (a 7x7 convolution of stride 2 and max pooling)."""


class BasicBlock(nn.Module):
    """Basic residual block: twice 3x3 convolution and BN, with a shortcut; ReLU after the first BN and the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H/stride, W/stride)."""
        skip = x if self.shortcut is None else self.shortcut(x)
        out: Tensor = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return out.add_(skip).relu_()


class Bottleneck(nn.Module):
    """Bottleneck block: 1x1, 3x3 and 1x1 convolution with BN and a shortcut; the last has 4 * outputs channels."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int = 1) -> None:
        super().__init__()
        inner = widen * outputs
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, 4 * outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * outputs)
        self.shortcut = _shortcut(inputs, 4 * outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, 4 * outputs, H/stride, W/stride)."""
        skip = x if self.shortcut is None else self.shortcut(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        last: Tensor = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(out)), inplace=True)))
        return last.add_(skip).relu_()


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """A 1x1 convolution and BN where a block changes the shape; None for the identity."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(Classifier):
    """ResNet with the stem of small images (3x3) or of large ones (7x7 of stride 2, and pooling); ResNet-18 by default.

    The stem 3x3 is a convolution of stride 1, and the state-dict keys are those of kuangliu's pytorch-cifar, as in most
    public CIFAR checkpoints. At width 1, 10 classes and 3 channels: 11,173,962 parameters for ResNet-18, 23,520,842 for
    ResNet-50 (bottleneck blocks). The stem 7x7 is that of the paper, with the initialisation of torchvision, whose
    state-dict keys are accepted, too. At width 1, 1,000 classes and 3 channels: 11,689,512 parameters for ResNet-18,
    21,797,672 for ResNet-34, 25,557,032 for ResNet-50 and 68,883,240 for WRN-50-2.

    Raises:
        ClasswiseError: for another stem, or a widening factor without bottleneck blocks.
    """

    renamed: ClassVar[Mapping[str, str]] = {r"\.downsample\.": ".shortcut.", r"^fc\.": "linear."}
    for_large_images: ClassVar[Mapping[str, Any]] = {"stem": LARGE}

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        blocks: Sequence[int] = (2, 2, 2, 2),
        bottleneck: bool = False,
        widen: int = 1,
        stem: str = SMALL,
    ) -> None:
        super().__init__()
        if stem not in (SMALL, LARGE):
            raise ClasswiseError(f"stem = {stem!r} of a residual network: must be {SMALL} or {LARGE}")
        if widen < 1 or (widen > 1 and not bottleneck):
            raise ClasswiseError(f"widen = {widen} of a residual network: must be 1, or larger with bottleneck blocks")
        sizes = [channels(64 * 2**stage, width) for stage in range(4)]
        block, factor = (partial(Bottleneck, widen=widen), 4) if bottleneck else (BasicBlock, 1)
        side, stride = (7, 2) if stem == LARGE else (3, 1)
        self.conv1 = nn.Conv2d(in_channels, sizes[0], side, stride=stride, padding=side // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(sizes[0])
        self.pool = nn.MaxPool2d(3, stride=2, padding=1) if stem == LARGE else None
        inputs = sizes[0]
        for number, (size, count) in enumerate(zip(sizes, blocks, strict=True), 1):
            first = block(inputs, size, 1 if number == 1 else 2)
            inputs = factor * size
            self.add_module(f"layer{number}", nn.Sequential(first, *(block(inputs, size, 1) for _ in range(count - 1))))
        self.linear = nn.Linear(inputs, num_classes)
        if stem == LARGE:
            start_for_relu(self, mode="fan_out")

    @classmethod
    def options_of(cls, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """The stem of weights, by the size of the first kernel."""
        return cls.for_large_images if tensors["conv1.weight"].shape[-1] == 7 else {}

    def features(self, x: Tensor) -> Tensor:
        """The average-pooled last feature map: (N, 512 * width), or (N, 2048 * width) with bottlenecks."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.pool is not None:
            x = self.pool(x)
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        return pooled(x)


resnet34 = partial(ResNet, blocks=(3, 4, 6, 3))
resnet50 = partial(ResNet, blocks=(3, 4, 6, 3), bottleneck=True)
wrn_50_2 = partial(ResNet, blocks=(3, 4, 6, 3), bottleneck=True, widen=2)
