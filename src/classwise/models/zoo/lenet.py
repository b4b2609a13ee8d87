"""LeNet-5 with ReLU: LeCun et al., Gradient-Based Learning Applied to Document Recognition (1998)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.models.base import Classifier, channels, to_grid

GRID = 5
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
        self.fc1 = nn.Linear(second * GRID * GRID, third)
        self.fc2 = nn.Linear(third, fourth)
        self.fc3 = nn.Linear(fourth, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Activations of the last hidden layer, (N, 84 * width)."""
        x = _framed(x)
        x = F.max_pool2d(F.relu(self.conv1(x), inplace=True), 2)
        x = F.max_pool2d(F.relu(self.conv2(x), inplace=True), 2)
        x = F.relu(self.fc1(to_grid(x, GRID).flatten(1)), inplace=True)
        return F.relu(self.fc2(x), inplace=True)


def _framed(x: Tensor) -> Tensor:
    rows, columns = (max(0, FRAME - size) for size in x.shape[-2:])
    if not rows and not columns:
        return x
    return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
