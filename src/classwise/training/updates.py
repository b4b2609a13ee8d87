"""How a loss changes the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn
from torch.optim import Optimizer

from classwise.settings import settings


class Update(ABC):
    """One change of the weights. ``loss`` may be called more than once (AWP and SAM do)."""

    @abstractmethod
    def __call__(self, model: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
        """Compute the loss and its gradients, and step."""


@settings
class Plain(Update):
    """One backward pass, one step of the optimiser."""

    def __call__(self, model: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
        """Compute the loss and its gradients, and step."""
        del model
        optimizer.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        optimizer.step()
