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

    def grown(self, factor: int) -> Own:
        """A method of an instance, which a path cannot name."""
        return Own(3 * factor)


def wide(num_classes: int, width: int = 64) -> nn.Module:
    """A user's network whose width is a number of channels, and no factor."""
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.Linear(width, num_classes))


def sized(num_classes: int, width: int) -> nn.Module:
    """A user's network whose width has no default."""
    return wide(num_classes, width)


def forwarding(num_classes: int, **settings: Any) -> nn.Module:
    """A user's network that forwards its settings."""
    return wide(num_classes, **{key: value for key, value in settings.items() if key == "width"})


def not_a_module() -> SimpleNamespace:
    """What a mistaken path gives."""
    return SimpleNamespace()


def trained(model: nn.Module) -> nn.Module:
    """The model with weights of its own, and statistics, scales and shifts that are not those of a fresh one."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter[0].numel() ** -0.5, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None and module.running_var is not None:
                module.running_mean.normal_(generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
            if module.affine:
                module.weight.data.uniform_(-0.5, 2, generator=generator)
                module.bias.data.normal_(generator=generator)
    return model.eval().requires_grad_(requires_grad=False)
