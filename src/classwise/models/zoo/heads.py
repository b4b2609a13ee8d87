"""Last layers other than `nn.Linear`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

_TINY = 1e-4
"""Lower bound of the norm of features, so that gradients are finite at zero features."""


class CosineHead(nn.Linear):
    """Cosine similarities of a feature and the weight of each class: (N, F) to (N, C), in [-1, 1].

    There is no bias and no scale, and the layer always computes in float32. In training mode the weights are normalised
    in place before each pass (Pang et al., NeurIPS 2020); in evaluation mode the stored weights are not modified.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Cosines (N, C) of features (N, F)."""
        with torch.no_grad():
            unit = F.normalize(self.weight, dim=1)
        if self.training:
            self.weight.data.copy_(unit)  # through .data: autograd of an earlier pass needs its own values
            unit = self.weight
        with torch.autocast(z.device.type, enabled=False):
            return F.linear(F.normalize(z.float(), dim=1, eps=_TINY), unit)
