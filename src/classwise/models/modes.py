"""Borrow a model: evaluation mode or frozen parameters for a while, and every flag back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


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
    """Let no parameter collect gradients; afterwards each has its own ``requires_grad`` again.

    Weights that were made in `torch.inference_mode` cannot take part in a gradient of the images: copies take their
    place meanwhile.
    """
    with _recordable(model):
        before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        try:
            for parameter, _ in before:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter, required in before:
                parameter.requires_grad_(required)


@contextmanager
def _recordable(model: nn.Module) -> Iterator[None]:
    """Put copies in the place of inference tensors among the weights and buffers; afterwards they are back."""
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    copies: dict[int, Tensor] = {}  # a tensor that two layers share stays shared
    try:
        for module in model.modules():
            holders: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for held in holders:
                for name, tensor in held.items():
                    if tensor is not None and tensor.is_inference():
                        replaced.append((held, name, tensor))
        for held, name, tensor in replaced:
            if id(tensor) not in copies:
                copy = tensor.detach().clone()
                copies[id(tensor)] = (
                    nn.Parameter(copy, requires_grad=False) if isinstance(tensor, nn.Parameter) else copy
                )
            held[name] = copies[id(tensor)]
        yield
    finally:
        for held, name, tensor in replaced:
            held[name] = tensor
