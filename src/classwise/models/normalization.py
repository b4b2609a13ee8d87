"""Normalisation as the first layer of the model, so that every image outside it is in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.models.base import Wrapper


class Normalized(Wrapper):
    """``model((x - mean) / std)``, channel by channel.

    The buffers ``mean`` and ``std`` have shape (1, C, 1, 1) and are saved with the weights. Whatever else the inner
    model has (``features``, ``classifier``, ...) can be asked of this one; ``features`` normalises first.

    Raises:
        ClasswiseError: if mean and std differ in length, a deviation is not positive, or the model is normalised
            already.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import classwise as cw
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
        >>> model = cw.Normalized(network, mean=[0.49, 0.48, 0.45], std=[0.25, 0.24, 0.26])
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> None:
        if isinstance(model, Normalized):
            raise ClasswiseError("the model normalises already; give the one inside it, model.model")
        super().__init__(model)
        # Not register_buffer: it would take what the inner model answers for these names as attributes of this one.
        self._buffers["mean"], self._buffers["std"] = _per_channel(mean), _per_channel(std)
        if self.mean.shape != self.std.shape:
            raise ClasswiseError(
                f"mean has {self.mean.numel()} channels and std {self.std.numel()}; give one of each a channel"
            )
        if not self.mean.numel() or not bool((self.std > 0).all() and torch.isfinite(self.mean + self.std).all()):
            raise ClasswiseError(
                f"std = {self.std.flatten().tolist()} should be positive, mean and std finite, one a channel"
            )

    def normalize(self, x: Tensor) -> Tensor:
        """(N, C, H, W) in [0, 1] to what the inner model reads.

        Raises:
            ClasswiseError: if the images have another number of channels; a single mean is for all channels.
        """
        channels = self.mean.shape[1]
        if channels not in (1, x.shape[1]):  # they would be broadcast to as many channels
            raise ClasswiseError(f"the normalisation has {channels} channels and the images have {x.shape[1]}")
        return (x - self.mean) / self.std

    def forward(self, x: Tensor) -> Tensor:
        """The inner model's output for images in [0, 1]."""
        out: Tensor = self.model(self.normalize(x))
        return out

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return (lambda x: found(self.normalize(x))) if name == "features" else found


def _per_channel(values: Sequence[float] | Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32).detach().clone().reshape(1, -1, 1, 1)
