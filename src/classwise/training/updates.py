"""Optimisers, and updates of the weights by a loss: a plain step, or adversarial weight perturbation (AWP)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar

import pydantic
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import NonNegative, Number, Positive, Share, configurable
from classwise.core.settings.description import Described

_Decay = Annotated[Number, pydantic.Field(ge=0, lt=1)]


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

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ClasswiseError("optimizer.nesterov = true: needs a momentum above 0, such as 0.9")

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
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    decoupled_weight_decay: bool = False

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build `torch.optim.Adam` or `torch.optim.AdamW` over all parameters."""
        kind = torch.optim.AdamW if self.decoupled_weight_decay else torch.optim.Adam
        return kind(model.parameters(), lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)


_TINY = 1e-20
"""Avoids division by zero for a layer with zero gradient."""


class Update(Described, ABC):
    """Base class of updates of the weights. An update may evaluate the loss more than once (as AWP and SAM do)."""

    #: Number of evaluations of the loss and its gradients per step.
    evaluations: ClassVar[int] = 1
    #: Whether its last action is the step of the optimiser, so that all before it can be a CUDA graph.
    steps_last: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, model: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor], progress: float) -> None:
        """Compute the loss and its gradients, and step.

        Args:
            model: the model.
            optimizer: the optimiser of its weights.
            loss: computes the loss of the batch, ().
            progress: the fraction of training completed, in [0, 1].
        """


@configurable
class Plain(Update):
    """One backward pass and one optimiser step."""

    source = ()
    example = "plain"
    steps_last = True

    def __call__(self, model: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor], progress: float) -> None:
        """Compute the loss and its gradients, and step."""
        optimizer.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        optimizer.step()


@configurable
class AWP(Update):
    """Adversarial weight perturbation (AWP; Wu, Xia and Wang, NeurIPS 2020, eq. 8 to 10), for any objective.

    The gradient of the update is evaluated at w + v, where v_l = gamma ‖w_l‖ g_l / ‖g_l‖ and g is the gradient of the
    same loss at w. Only weights of more than one dimension are perturbed, not biases and the scales of batch
    normalisation. The adversarial images are those of the unperturbed model. The cost is one additional forward and
    backward pass of the loss.

    The weights are restored bit for bit before the optimiser step, so weight decay applies to w; the public code steps
    first, and decays w + v. As in the public code, the statistics of batch normalisation include only the pass at w +
    v.

    Args:
        gamma: the size of the perturbation relative to each layer's weights; 0.01 for AT and 0.005 for TRADES in the
            paper.
        start_fraction: the fraction of training after which AWP starts; epoch 10 of 200 in the public code for TRADES.
    """

    source = ("wu2020adversarial, eq. 8 to 10",)
    changes = ("update",)
    example = "awp:gamma=0.01"
    evaluations = 2
    steps_last = True

    gamma: NonNegative = 0.01
    start_fraction: Share = 0.0

    def __call__(self, model: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor], progress: float) -> None:
        """Perturb the weights, compute the gradient, restore the weights, and step."""
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
