"""Wide residual networks: Zagoruyko and Komodakis, Wide Residual Networks (2016), as implemented by TRADES."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.errors import ClasswiseError
from classwise.models.base import Classifier, channels, pooled, start_for_relu
from classwise.models.zoo.preactresnet import stage


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
