"""Models whose logits have no gradient, or a gradient that is zero, with respect to their images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.auditing import toys


class Fronted(nn.Module):
    """A linear model between a front end on its images and a back end on its logits."""

    def __init__(
        self, front: Callable[[Tensor], Tensor] = torch.clone, back: Callable[[Tensor], Tensor] = torch.clone
    ) -> None:
        super().__init__()
        self.inner = toys.model(scale=2.0)
        self.front, self.back = front, back
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.inner(self.front(x)))


class Silent(Fronted):
    """Runs without recording gradients."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class Elsewhere(Fronted):
    """Computes outside torch, like the session of another runtime."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(super().forward(torch.from_numpy(x.numpy())).detach().numpy())


def thermometer(x: Tensor) -> Tensor:
    """Eight grey levels by comparisons, which autograd does not record."""
    levels = torch.linspace(0, 1, 9)[1:-1]
    return (x[..., None] > levels).float().mean(-1)


def sign(x: Tensor) -> Tensor:
    """Two grey levels; the gradient of the sign is recorded, and is zero."""
    return 0.5 + 0.1 * (x - 0.5).sign()


def without_gradients() -> dict[str, nn.Module]:
    """Models to which no gradient attack is applicable."""
    return {
        "detached": Fronted(back=torch.detach),
        "no_grad": Silent(),
        "elsewhere": Elsewhere(),
        "thermometer": Fronted(front=thermometer),
    }


class DetachedDigits(nn.Module):
    """A linear model of 8 x 8 digits that detaches its logits: for the command line, which imports it by path."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1)).detach()
        return logits


def detached_digits() -> nn.Module:
    return DetachedDigits().eval()
