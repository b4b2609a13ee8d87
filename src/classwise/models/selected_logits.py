"""Restriction of a model's predictions to some of its classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from classwise.models.base import Wrapper


class SelectedLogits(Wrapper):
    """A model of which only some logits are used: the others are never predicted.

    ImageNet-A and ImageNet-R have 200 of the classes of ImageNet, and their authors evaluate models of ImageNet so.

    Args:
        model: maps images to logits (N, C).
        classes: the class of each selected logit, in [0, C).
    """

    def __init__(self, model: nn.Module, classes: Sequence[int]) -> None:
        super().__init__(model)
        parameter = next(model.parameters(), None)
        # Not register_buffer, which rejects names that are attributes of the inner model.
        self._buffers["selected"] = torch.tensor(classes, device=None if parameter is None else parameter.device)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, K) of images (N, channels, H, W)."""
        logits: Tensor = self.model(x)
        return logits[:, self.selected]
