"""How a loss changes the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from classwise.core.config import NonNegative, Share, configurable
from classwise.core.description import Described

_TINY = 1e-20
"""Avoids a division by zero for a layer whose gradient is zero."""


class Update(Described, ABC):
    """One change of the weights. ``loss`` may be called more than once (AWP and SAM do)."""

    #: How often a step evaluates the loss and its gradients.
    evaluations: ClassVar[int] = 1

    @abstractmethod
    def __call__(self, model: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor], progress: float) -> None:
        """Compute the loss and its gradients, and step; ``progress`` is the share of training done, in [0, 1]."""


@configurable
class Plain(Update):
    """One backward pass, one step of the optimiser."""

    source = ()
    example = "plain"

    def __call__(self, model: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor], progress: float) -> None:
        """Compute the loss and its gradients, and step."""
        del model, progress
        optimizer.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        optimizer.step()


@configurable
class AWP(Update):
    """Adversarial weight perturbation (Wu, Xia and Wang, NeurIPS 2020, eq. 8 to 10), around any objective.

    The gradient that the optimiser gets is taken at w + v, where v_l = gamma ‖w_l‖ g_l / ‖g_l‖ and g is the gradient
    of the same loss at w. Only weights of more than one dimension are moved: biases and the scales of batch
    normalisation stay. The adversarial images are those of the unperturbed model. It costs one forward and backward
    pass of the loss more.

    The weights are put back, to the bit, before the optimiser steps, so weight decay acts on w; the public code steps
    first, and decays w + v. The statistics of batch normalisation count the pass at w + v alone, as there.

    Args:
        gamma: the size of the perturbation relative to each layer's weights; the paper: 0.01 for AT, 0.005 for TRADES.
        start_fraction: the share of training from which it acts; the public code for TRADES waits for epoch 10 of 200.
    """

    source = ("wu2020adversarial, eq. 8 to 10",)
    changes = ("update",)
    example = "awp:gamma=0.01"
    evaluations = 2

    gamma: NonNegative = 0.01
    start_fraction: Share = 0.0

    def __call__(self, model: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor], progress: float) -> None:
        """Climb from the weights, take the gradient there, come back, and step."""
        optimizer.zero_grad(set_to_none=True)
        if progress < self.start_fraction:
            loss().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            optimizer.step()
            return
        buffers = [buffer for buffer in model.buffers() if buffer is not None]
        statistics = [buffer.clone() for buffer in buffers]
        loss().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for buffer, before in zip(buffers, statistics, strict=True):
                buffer.copy_(before)
            moved = [weight for weight in model.parameters() if weight.ndim > 1 and weight.grad is not None]
            unperturbed = [weight.clone() for weight in moved]
            for weight in moved:
                gradient = weight.grad
                assert gradient is not None
                weight.add_(gradient * (self.gamma * weight.norm() / gradient.norm().clamp_min(_TINY)))
        optimizer.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for weight, before in zip(moved, unperturbed, strict=True):
                weight.copy_(before)
        optimizer.step()
