"""Floating-point operations of passes, counted in one thread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def operations_of(model: nn.Module, images: Tensor) -> int:
    """Floating-point operations of a forward pass: those of convolutions, matrix products and attention.

    `torch.utils.flop_counter.FlopCounterMode` counts the same, with hooks on the modules of all threads.

    Args:
        model: the model, in evaluation mode.
        images: (N, C, H, W).

    Example:
        >>> import torch
        >>> from classwise.core.compute.operations import operations_of
        >>> operations_of(torch.nn.Linear(48, 10), torch.zeros(2, 48))
        1920
    """
    counted = _Operations()
    with counted, torch.no_grad():
        model(images)
    return counted.total


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        self.total += 0 if count is None else count(*args, **(kwargs or {}), out_val=out)
        return out
