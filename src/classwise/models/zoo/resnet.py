"""ResNet-18 and ResNet-50 for small images: He et al., Deep Residual Learning for Image Recognition (2016)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.models.base import Classifier, channels, pooled


class BasicBlock(nn.Module):
    """Basic residual block: twice 3x3 convolution and BN, with a shortcut; ReLU after the first BN and the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H/stride, W/stride)."""
        skip = x if self.shortcut is None else self.shortcut(x)
        out: Tensor = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return out.add_(skip).relu_()


class Bottleneck(nn.Module):
    """Bottleneck block: 1x1, 3x3 and 1x1 convolution with BN and a shortcut; the last expands the channels by 4."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv3 = nn.Conv2d(outputs, 4 * outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * outputs)
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or inputs != 4 * outputs:
            convolution = nn.Conv2d(inputs, 4 * outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(4 * outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, 4 * outputs, H/stride, W/stride)."""
        skip = x if self.shortcut is None else self.shortcut(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        last: Tensor = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(out)), inplace=True)))
        return last.add_(skip).relu_()


class ResNet(Classifier):
    """ResNet for small images, with a 3x3 convolution of stride 1 as first layer; ResNet-18 by default.

    The state-dict keys are those of kuangliu's pytorch-cifar, as in most public CIFAR checkpoints. At width 1, 10
    classes and 3 channels: 11,173,962 parameters for ResNet-18, 23,520,842 for ResNet-50 (bottleneck blocks).
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        blocks: Sequence[int] = (2, 2, 2, 2),
        bottleneck: bool = False,
    ) -> None:
        super().__init__()
        sizes = [channels(64 * 2**stage, width) for stage in range(4)]
        grown = [size * 4 if bottleneck else size for size in sizes]
        self.conv1 = nn.Conv2d(in_channels, sizes[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(sizes[0])
        self.layer1 = _stage(sizes[0], sizes[0], blocks[0], stride=1, bottleneck=bottleneck)
        self.layer2 = _stage(grown[0], sizes[1], blocks[1], stride=2, bottleneck=bottleneck)
        self.layer3 = _stage(grown[1], sizes[2], blocks[2], stride=2, bottleneck=bottleneck)
        self.layer4 = _stage(grown[2], sizes[3], blocks[3], stride=2, bottleneck=bottleneck)
        self.linear = nn.Linear(grown[3], num_classes)

    def features(self, x: Tensor) -> Tensor:
        """The average-pooled last feature map: (N, 512 * width), or (N, 2048 * width) with bottlenecks."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return pooled(self.layer4(self.layer3(self.layer2(self.layer1(x)))))


def _stage(inputs: int, outputs: int, blocks: int, *, stride: int, bottleneck: bool) -> nn.Sequential:
    block, factor = (Bottleneck, 4) if bottleneck else (BasicBlock, 1)
    first = block(inputs, outputs, stride)
    return nn.Sequential(first, *(block(factor * outputs, outputs, 1) for _ in range(blocks - 1)))


resnet50 = partial(ResNet, blocks=(3, 4, 6, 3), bottleneck=True)
