"""A model's modes, borrowed and given back exactly as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Put every submodule in evaluation mode; restore each one's own flag, also after an exception."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield model
    finally:
        for module, flag in flags:
            module.training = flag


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Ask for no gradient of any parameter; restore each one's own flag, also after an exception."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield model
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
