"""Optimisers by name."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from classwise.core.config import NonNegative, Positive, Share, configurable
from classwise.core.description import Described


class Optimiser(Described, ABC):
    """Builds a torch optimiser; ``lr`` is the rate that the rate schedule multiplies."""

    lr: float

    @abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over all parameters of the model."""


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
        """SGD over all parameters."""
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
        lr: the full learning rate.
        betas: the weights of the past in the means of the gradient and of its square.
        eps: added to the root of the latter.
        weight_decay: the factor of the weights that joins the gradient, or that leaves the weights if ``decoupled``.
        decoupled: decay the weights apart from the gradient (AdamW: Loshchilov and Hutter, ICLR 2019).
    """

    source = ("kingma2015adam",)
    changes = ("update",)
    example = "adam:lr=1e-3"

    lr: Positive = 1e-3
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    decoupled: bool = False

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam or AdamW over all parameters."""
        kind = torch.optim.AdamW if self.decoupled else torch.optim.Adam
        return kind(model.parameters(), lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
