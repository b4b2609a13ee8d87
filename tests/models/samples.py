"""Small networks that the tests of this folder build, by name where a path is wanted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from classwise.models import build_model


def tiny(**changes: object) -> nn.Module:
    """A PreActResNet-18 of 2 to 16 channels for 5 classes, with settled batch statistics."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"num_classes": 5, "in_channels": 3, "width": 1 / 32, **changes}
    model = build_model("preactresnet18", **settings)
    with torch.no_grad():
        model(torch.rand(8, settings["in_channels"], 8, 8))
    return model.eval()


class Own(nn.Module):
    """A user's network: its number of classes has no default, and ``model.`` is inside its keys."""

    def __init__(self, num_classes: int, hidden: int = 6) -> None:
        super().__init__()
        self.submodel = nn.Linear(12, hidden)
        self.supermodel = nn.ModuleDict({"model": nn.Linear(hidden, num_classes)})

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and features that nobody asked for."""
        hidden = self.submodel(x.flatten(1)).relu()
        return self.supermodel["model"](hidden), hidden


def not_a_module() -> SimpleNamespace:
    """What a mistaken path gives."""
    return SimpleNamespace()
