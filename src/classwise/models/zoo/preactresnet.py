"""Pre-activation residual networks (He et al., 2016), also wide ones (Zagoruyko and Komodakis, 2016) as in TRADES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.errors import ClasswiseError
from classwise.models.base import Classifier, channels, pooled, start_for_relu


class PreActBlock(nn.Module):
    """Pre-activation block: twice BN, ReLU and 3x3 convolution, plus a shortcut (1x1 convolution on shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H/stride, W/stride)."""
        active = F.relu(self.bn1(x), inplace=True)
        skip = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active)), inplace=True))
        return out.add_(skip)


class PreActResNet(Classifier):
    """PreActResNet for small images, with a first layer of stride 1; PreActResNet-18 by default.

    The state-dict keys are those of public code for adversarial training (fast_adversarial, robust_overfitting, CFA).
    At width 1, 10 classes and 3 channels: 11,172,170 parameters with the final batch normalisation, as in CFA and in
    the paper of the architecture; 11,171,146 without it, as in kuangliu's pytorch-cifar. At width 0.25: 0.70 million.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        blocks: Sequence[int] = (2, 2, 2, 2),
        final_norm: bool = True,
    ) -> None:
        super().__init__()
        sizes = [channels(64 * 2**stage, width) for stage in range(4)]
        self.conv1 = nn.Conv2d(in_channels, sizes[0], 3, padding=1, bias=False)
        self.layer1 = stage(sizes[0], sizes[0], blocks[0], stride=1)
        self.layer2 = stage(sizes[0], sizes[1], blocks[1], stride=2)
        self.layer3 = stage(sizes[1], sizes[2], blocks[2], stride=2)
        self.layer4 = stage(sizes[2], sizes[3], blocks[3], stride=2)
        self.bn = nn.BatchNorm2d(sizes[3]) if final_norm else None
        self.linear = nn.Linear(sizes[3], num_classes)

    def features(self, x: Tensor) -> Tensor:
        """The average-pooled last feature map, (N, 512 * width)."""
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        if self.bn is not None:
            x = F.relu(self.bn(x), inplace=True)
        return pooled(x)


def stage(inputs: int, outputs: int, blocks: int, *, stride: int) -> nn.Sequential:
    """A sequence of blocks; only the first has the stride and changes the number of channels."""
    first = PreActBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(PreActBlock(outputs, outputs, 1) for _ in range(blocks - 1)))


class WideResNet(Classifier):
    """Wide ResNet: three stages of pre-activation blocks with 16, 32 and 64 channels times the widening factor.

    At width 1, 10 classes and 3 channels: 36,479,194 parameters for WRN-28-10, 46,160,474 for WRN-34-10. Checkpoints
    of TRADES contain a further block, ``sub_block1``, which its forward pass does not use; it is ignored here.

    Raises:
        ClasswiseError: if the depth is not 6n + 4.
    """

    last_layer: ClassVar[str] = "fc"
    renamed: ClassVar[Mapping[str, str]] = {r"^(block\d)\.layer\.": r"\1.", r"\.convShortcut\.": ".shortcut.0."}
    unused: ClassVar[tuple[str, ...]] = ("sub_block1.",)

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        depth: int = 34,
        widen: int = 10,
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ClasswiseError(f"depth = {depth} of a wide residual network: must be 6n + 4, such as 28 or 34")
        sizes = [channels(16 * factor, width) for factor in (1, widen, 2 * widen, 4 * widen)]
        self.conv1 = nn.Conv2d(in_channels, sizes[0], 3, padding=1, bias=False)
        self.block1 = stage(sizes[0], sizes[1], blocks, stride=1)
        self.block2 = stage(sizes[1], sizes[2], blocks, stride=2)
        self.block3 = stage(sizes[2], sizes[3], blocks, stride=2)
        self.bn1 = nn.BatchNorm2d(sizes[3])
        self.fc = nn.Linear(sizes[3], num_classes)
        start_for_relu(self, mode="fan_out")
        nn.init.zeros_(self.fc.bias)
        self.initialisation += ", zero bias"

    def features(self, x: Tensor) -> Tensor:
        """The average-pooled last feature map, (N, 64 * widen * width)."""
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return pooled(F.relu(self.bn1(x), inplace=True))


wrn_28_10 = partial(WideResNet, depth=28, widen=10)
wrn_34_10 = partial(WideResNet, depth=34, widen=10)
