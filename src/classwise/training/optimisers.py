"""Optimisers by name."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from classwise.core.settings.config import NonNegative, Positive, Share, configurable
from classwise.core.settings.description import Described


class Optimiser(Described, ABC):
    """Build a torch optimiser; ``lr`` is the peak learning rate, which the learning-rate schedule multiplies."""

    lr: float

    @abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build the optimiser over all parameters of the model."""


@configurable
class SGD(Optimiser):
    """Stochastic gradient descent with momentum."""

    source = ()
    example = "sgd:lr=0.1"

    lr: Positive = 0.1
    momentum: Share = 0.9
    weight_decay: NonNegative = 5e-4
    nesterov: bool = False

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build `torch.optim.SGD` over all parameters."""
        return torch.optim.SGD(
            model.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


@configurable
class Adam(Optimiser):
    """Adam (Kingma and Ba, ICLR 2015).

    Args:
        lr: the peak learning rate.
        betas: decay rates of the running means of the gradient and of its square.
        eps: added to the denominator for numerical stability.
        weight_decay: the L2 penalty, or the decay rate if ``decoupled_weight_decay``.
        decoupled_weight_decay: decay the weights directly instead of through the gradient (AdamW: Loshchilov and
            Hutter, ICLR 2019).
    """

    source = ("kingma2015adam",)
    changes = ("update",)
    example = "adam:lr=1e-3"

    lr: Positive = 1e-3
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    decoupled_weight_decay: bool = False

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build `torch.optim.Adam` or `torch.optim.AdamW` over all parameters."""
        kind = torch.optim.AdamW if self.decoupled_weight_decay else torch.optim.Adam
        return kind(model.parameters(), lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
