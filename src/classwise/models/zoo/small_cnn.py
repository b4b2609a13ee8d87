"""Networks for digits: LeNet-5 with ReLU (LeCun et al., 1998), and the CNN of TRADES for MNIST (Zhang et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.models.base import Classifier, channels, start_for_relu, to_grid

LENET_GRID = 5
"""The last feature map is pooled to 5x5, its size for 32x32 images."""
FRAME = 32
"""Smaller images are centred and zero-padded to 32x32, as in the paper."""


class LeNet(Classifier):
    """LeNet-5 with ReLU: two 5x5 convolutions with 2x2 max pooling, and three linear layers.

    At width 1 and 10 classes: 61,706 parameters for 1 channel, 62,006 for 3.
    """

    last_layer: ClassVar[str] = "fc3"

    def __init__(self, *, num_classes: int = 10, in_channels: int = 1, width: float = 1.0) -> None:
        super().__init__()
        first, second, third, fourth = (channels(count, width) for count in (6, 16, 120, 84))
        self.conv1 = nn.Conv2d(in_channels, first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.fc1 = nn.Linear(second * LENET_GRID * LENET_GRID, third)
        self.fc2 = nn.Linear(third, fourth)
        self.fc3 = nn.Linear(fourth, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Activations of the last hidden layer, (N, 84 * width)."""
        x = _centred(x)
        x = F.max_pool2d(F.relu(self.conv1(x), inplace=True), 2)
        x = F.max_pool2d(F.relu(self.conv2(x), inplace=True), 2)
        x = F.relu(self.fc1(to_grid(x, LENET_GRID).flatten(1)), inplace=True)
        return F.relu(self.fc2(x), inplace=True)


def _centred(x: Tensor) -> Tensor:
    rows, columns = (max(0, FRAME - size) for size in x.shape[-2:])
    if not rows and not columns:
        return x
    return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))


GRID = 4
"""The last feature map is pooled to 4x4, its size for 28x28 images."""
SMALL = 16
"""Images below this size are zero-padded before each pair of convolutions."""


class SmallCNN(Classifier):
    """Two pairs of 3x3 convolutions with 2x2 max pooling, and three linear layers.

    312,202 parameters at width 1, 10 classes and 1 channel. 28x28 images are processed as in the public code; other
    sizes are pooled to the same 4x4 grid. Two choices differ from the public code: the last layer is not initialised
    to zero, and dropout is off by default, because its masks come from torch's global generator.
    """

    last_layer: ClassVar[str] = "fc3"
    renamed: ClassVar[Mapping[str, str]] = {r"^(feature_extractor|classifier)\.": ""}

    def __init__(
        self,
        *,
        num_classes: int = 10,
        in_channels: int = 1,
        width: float = 1.0,
        hidden: int = 200,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        first, second, units = channels(32, width), channels(64, width), channels(hidden, width)
        self.conv1 = nn.Conv2d(in_channels, first, 3)
        self.conv2 = nn.Conv2d(first, first, 3)
        self.conv3 = nn.Conv2d(first, second, 3)
        self.conv4 = nn.Conv2d(second, second, 3)
        self.fc1 = nn.Linear(second * GRID * GRID, units)
        self.drop = nn.Dropout(dropout) if dropout else None
        self.fc2 = nn.Linear(units, units)
        self.fc3 = nn.Linear(units, num_classes)
        start_for_relu(self)

    def features(self, x: Tensor) -> Tensor:
        """Activations of the last hidden layer, (N, 200 * width)."""
        border = 2 if min(x.shape[-2:]) < SMALL else 0
        x = _pair(self.conv1, self.conv2, x, border)
        x = _pair(self.conv3, self.conv4, x, border)
        x = F.relu(self.fc1(to_grid(x, GRID).flatten(1)), inplace=True)
        if self.drop is not None:
            x = self.drop(x)
        return F.relu(self.fc2(x), inplace=True)


def _pair(first: nn.Conv2d, second: nn.Conv2d, x: Tensor, border: int) -> Tensor:
    x = F.pad(x, (border,) * 4) if border else x
    return F.max_pool2d(F.relu(second(F.relu(first(x), inplace=True)), inplace=True), 2)
