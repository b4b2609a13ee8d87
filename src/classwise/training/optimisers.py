"""Optimisers by name."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from classwise.settings import NonNegative, Positive, Share, settings


class Optimiser(ABC):
    """Builds a torch optimiser; ``lr`` is the rate that the rate schedule multiplies."""

    lr: float

    @abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over all parameters of the model."""


@settings
class SGD(Optimiser):
    """Stochastic gradient descent with momentum."""

    lr: Positive = 0.1
    momentum: Share = 0.9
    weight_decay: NonNegative = 5e-4
    nesterov: bool = False

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """SGD over all parameters."""
        return torch.optim.SGD(
            model.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )
