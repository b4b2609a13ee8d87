"""Batch normalisation of a borrowed model as what it is in evaluation mode: one multiplication and one addition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor, nn

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


@contextmanager
def affine_norms(model: nn.Module) -> Iterator[int]:
    """Let batch normalisation run as a multiply-add wherever mixed precision is on; afterwards all is as it was.

    The library's own kernel works out the gradients of scale and shift too, which an attack on a frozen model throws
    away: its backward pass takes about four times as long as this one's. In float32 nothing changes, not a bit. The
    statistics are read once, so the model must stay in evaluation mode, its weights untouched, while it is borrowed.

    Yields:
        How many layers it changed: those that are exactly torch's own, in evaluation mode, with running statistics.
    """
    changed = [module for module in model.modules() if _is_plain(module)]
    try:
        for module in changed:
            module.forward = _affine(module)  # type: ignore[assignment, method-assign]  # on the instance, for a while
        yield len(changed)
    finally:
        for module in changed:
            del module.forward


def _is_plain(module: nn.Module) -> TypeGuard[BatchNorm]:
    if type(module) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) or "forward" in module.__dict__:
        return False
    return not module.training and module.running_mean is not None


def _affine(norm: BatchNorm) -> Callable[[Tensor], Tensor]:
    """The layer's forward pass: a multiply-add where its input has been cast to lower precision."""
    usual: Callable[[Tensor], Tensor] = norm.forward
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        scale = (norm.running_var.float() + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean * scale
        shift = shift if norm.bias is None else shift + norm.bias
    ready: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def like(x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift spread over one image, which runs along memory as it does: several times faster on a CPU."""
        format_ = _format(x)
        key = x.shape[1:], x.dtype, format_
        if key not in ready:
            ready[key] = tuple(  # type: ignore[assignment]  # torch cannot say that two in gives two out
                value.to(x.dtype)
                .view(1, -1, *[1] * (x.ndim - 2))
                .expand(1, *x.shape[1:])
                .contiguous(memory_format=format_)
                for value in (scale, shift)
            )
        return ready[key]

    def forward(x: Tensor) -> Tensor:
        if x.dtype not in (torch.bfloat16, torch.float16) or x.ndim < 3:
            return usual(x)
        spread, offset = like(x)
        return torch.addcmul(offset, x, spread)

    return forward


def _format(x: Tensor) -> torch.memory_format:
    for format_, ndim in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        if x.ndim == ndim and x.is_contiguous(memory_format=format_) and not x.is_contiguous():
            return format_
    return torch.contiguous_format
