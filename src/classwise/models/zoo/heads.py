"""Last layers other than the linear one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

_TINY = 1e-4
"""Features shorter than this count as this long, so that a dead network has finite gradients."""


class CosineHead(nn.Linear):
    """The cosines between a feature and each class's weight row: (N, F) to (N, C), in [-1, 1].

    No bias and no scale; in float32 whatever the network's precision. In training mode the rows are put back on the
    unit sphere in place before each pass (Pang et al., NeurIPS 2020); in evaluation mode the stored weights stay as
    they are.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Cosines (N, C) of features (N, F)."""
        with torch.no_grad():
            unit = F.normalize(self.weight, dim=1)
        if self.training:
            self.weight.data.copy_(unit)  # through .data: an earlier pass of this step still needs its own values
            unit = self.weight
        with torch.autocast(z.device.type, enabled=False):
            return F.linear(F.normalize(z.float(), dim=1, eps=_TINY), unit)
