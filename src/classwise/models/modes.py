"""Context managers for evaluation mode, frozen parameters and missing gradients, which restore every flag exactly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[bool]:
    """Set every submodule to evaluation mode; restore each flag afterwards, also after an exception.

    Yields:
        Whether any submodule was in training mode.
    """
    before = [(module, module.training) for module in model.modules()]
    try:
        # Sets the flag instead of calling .eval(), which a model may override (as frozen layers do).
        for module, _ in before:
            module.training = False
        yield any(training for _, training in before)
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Set ``requires_grad`` of every parameter to False; restore each afterwards.

    Parameters and buffers created in `torch.inference_mode` cannot be used in a gradient of the images. They are
    replaced by copies within the context.
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
    """Replace inference tensors among parameters and buffers by copies; restore them afterwards."""
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    copies: dict[int, Tensor] = {}  # a tensor shared by two layers remains shared
    try:
        for module in model.modules():
            tensor_dicts: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for tensors in tensor_dicts:
                for name, tensor in tensors.items():
                    if tensor is not None and tensor.is_inference():
                        replaced.append((tensors, name, tensor))
        for tensors, name, tensor in replaced:
            if id(tensor) not in copies:
                copy = tensor.detach().clone()
                copies[id(tensor)] = (
                    nn.Parameter(copy, requires_grad=False) if isinstance(tensor, nn.Parameter) else copy
                )
            tensors[name] = copies[id(tensor)]
        yield
    finally:
        for tensors, name, tensor in replaced:
            tensors[name] = tensor


@contextmanager
def wrong_gradients_refused() -> Iterator[None]:
    """Raise an error in the backward pass of operations without a derivative, such as layers in int8.

    For some of them torch only warns, and computes a wrong gradient.

    Raises:
        RuntimeError: instead of the warning.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{_NO_DERIVATIVE}")
        try:
            yield
        except UserWarning as warning:
            operation, found, _ = str(warning).partition(f": {_NO_DERIVATIVE}")
            if not found:
                raise
            raise RuntimeError(f"{operation} has no gradient") from warning


_NO_DERIVATIVE = "an autograd kernel was not registered"
