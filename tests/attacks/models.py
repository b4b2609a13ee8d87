"""Small models with known answers."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class Linear(nn.Module):
    """Logits = W x + b; for it, the best attack is known in closed form."""

    def __init__(self, classes: int, channels: int = 2, side: int = 3, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, channels * side * side, generator=generator))
        self.bias = nn.Parameter(torch.randn(classes, generator=generator) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class Small(nn.Module):
    """A little convolutional network with batch normalisation and dropout; its predictions spread over the classes."""

    def __init__(self, classes: int = 3, channels: int = 2) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.convolution = nn.Conv2d(channels, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.dropout = nn.Dropout(0.5)
            self.linear = nn.Linear(8, classes)
            for _ in range(3):
                self.norm(self.convolution(torch.rand(16, channels, 4, 4)))
            with torch.no_grad():
                self.linear.bias.sub_(self.eval()(images(200, channels)).mean(0))
            self.train()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.convolution(4 * x)))
        logits: Tensor = self.linear(self.dropout(hidden.mean((2, 3))) * 20)
        return logits


def images(count: int = 12, channels: int = 2, side: int = 4, seed: int = 0) -> Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(seed))


def labelled(model: M, x: Tensor) -> tuple[M, Tensor, Tensor]:
    """The model, the images, and the labels that it predicts for them, so that all are correctly classified."""
    return model, x, model(x).argmax(1)
