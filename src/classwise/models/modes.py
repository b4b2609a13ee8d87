"""Borrow a model: evaluation mode or frozen parameters for a while, and every flag back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[bool]:
    """Put every submodule in evaluation mode; afterwards each has its own flag again, also after an exception.

    Yields:
        Whether any submodule was in training mode.
    """
    before = [(module, module.training) for module in model.modules()]
    try:
        # The flag itself, not .eval(): a model may override it (frozen layers do) and must not be told twice.
        for module, _ in before:
            module.training = False
        yield any(training for _, training in before)
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Let no parameter collect gradients; afterwards each has its own ``requires_grad`` again."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)
