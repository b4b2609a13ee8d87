"""Batch normalisation in evaluation mode as one multiply-add."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
Forwards = Mapping[nn.Module, Callable[[Tensor], Tensor]]
"""The forward pass of each of some layers."""
LOWER = (torch.bfloat16, torch.float16)
"""The data types of lower precision."""


class AffineNorms:
    """The batch normalisation of a frozen model in evaluation mode, as one multiply-add per layer.

    PyTorch's kernel also computes the gradients of scale and shift, which an attack on a frozen model discards: its
    backward pass takes about four times as long. The tensors of the multiply-adds are allocated at their first use;
    afterwards the current weights and statistics are copied into them.

    Args:
        model: the model.
        dtypes: data types of the inputs for which a layer is a multiply-add; other inputs use PyTorch's kernel, so that
            no bit changes.
    """

    def __init__(self, model: nn.Module, dtypes: tuple[torch.dtype, ...] = LOWER) -> None:
        self._model = model
        self._dtypes = dtypes
        self._layers: dict[nn.Module, _MultiplyAdd] = {}

    @contextmanager
    def replaced(self) -> Iterator[int]:
        """Context in which the layers run as multiply-adds; restores them afterwards.

        The statistics are read once, so the model must remain in evaluation mode with unchanged weights within.

        Yields:
            The number of layers: instances of torch's own classes, in evaluation mode, with running statistics.
        """
        layers = self.refreshed([module for module in self._model.modules() if is_plain_norm(module)])
        with replaced(layers):
            yield len(layers)

    @torch.no_grad()
    def refreshed(self, norms: Sequence[BatchNorm]) -> Forwards:
        """The multiply-adds of these layers with their current weights and statistics."""
        if not norms:
            return {}
        statistics = Statistics.of(norms)
        scales = statistics.scales()
        shifts = torch._foreach_mul(torch._foreach_neg(statistics.means), scales)
        shifts = torch._foreach_add(shifts, statistics.biases)
        for norm, scale, shift in zip(norms, scales, shifts, strict=True):
            if norm not in self._layers:
                self._layers[norm] = _MultiplyAdd(norm.forward, self._dtypes)
            self._layers[norm].scale, self._layers[norm].shift = scale, shift
        layers: dict[nn.Module, _MultiplyAdd] = {norm: self._layers[norm] for norm in norms}
        copies = [pair for layer in layers.values() for pair in layer.copies()]
        if copies:
            targets, sources = zip(*copies, strict=True)
            torch._foreach_copy_(targets, sources)
        return layers


class _MultiplyAdd:
    """The forward pass of a layer as a multiply-add with ``scale`` and ``shift``, (C,)."""

    scale: Tensor
    shift: Tensor

    def __init__(self, original: Callable[[Tensor], Tensor], dtypes: tuple[torch.dtype, ...]) -> None:
        self._original = original
        self._dtypes = dtypes
        self._expanded: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise inputs (N, C, ...)."""
        if x.dtype not in self._dtypes:
            return self._original(x)
        scale, shift = self._like(x)
        return torch.addcmul(shift, x, scale)

    def copies(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each expanded tensor, and the tensor of the same shape to copy into it."""
        for expanded in self._expanded.values():
            for target, value in zip(expanded, (self.scale, self.shift), strict=True):
                yield target, _spread(value, target.ndim).expand_as(target)

    def _like(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift expanded to one image, in its memory format: several times faster on a CPU."""
        format_ = _format(x)
        key = x.shape[1:], x.dtype, format_, x.device
        if key not in self._expanded:
            self._expanded[key] = tuple(  # type: ignore[assignment]  # torch has no type for two in, two out
                _spread(value.to(x.dtype), x.ndim).expand(1, *x.shape[1:]).contiguous(memory_format=format_)
                for value in (self.scale, self.shift)
            )
        return self._expanded[key]


@contextmanager
def replaced(forwards: Forwards) -> Iterator[None]:
    """Replace the forward passes of these layers; restore them afterwards."""
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module in forwards:
            vars(module).pop("forward", None)  # another thread may have restored it


def is_plain_norm(module: nn.Module) -> TypeGuard[BatchNorm]:
    """Whether a module is batch normalisation by torch's own code with running statistics, in evaluation mode."""
    if type(module) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) or "forward" in module.__dict__:
        return False
    return not module.training and module.running_mean is not None and module.running_var is not None


class Statistics(NamedTuple):
    """Tensors of several layers of batch normalisation, each (C,): (x - mean) * inverse_std * weight + bias."""

    means: list[Tensor]
    inverse_stds: list[Tensor]
    weights: list[Tensor]
    biases: list[Tensor]

    @classmethod
    @torch.no_grad()
    def of(cls, norms: Sequence[BatchNorm]) -> Statistics:
        """The statistics of these layers; weights and biases are ones and zeros in layers without them."""
        means, variances = [_known(norm.running_mean) for norm in norms], [_known(norm.running_var) for norm in norms]
        variances = [variance.to(torch.promote_types(variance.dtype, torch.float32)) for variance in variances]
        shifted = torch._foreach_add(variances, [norm.eps for norm in norms])
        return cls(
            means,
            [variance.rsqrt() for variance in shifted],
            [torch.ones_like(_known(norm.running_mean)) if norm.weight is None else norm.weight for norm in norms],
            [torch.zeros_like(_known(norm.running_mean)) if norm.bias is None else norm.bias for norm in norms],
        )

    @torch.no_grad()
    def scales(self) -> list[Tensor]:
        """The factor of the input of each layer."""
        return list(torch._foreach_mul(self.inverse_stds, self.weights))


def _spread(values: Tensor, ndim: int) -> Tensor:
    """Values of channels, (C,), as a tensor (1, C, 1, ...)."""
    return values.view(1, -1, *[1] * (ndim - 2))


def _known(statistics: Tensor | None) -> Tensor:
    assert statistics is not None
    return statistics


def _format(x: Tensor) -> torch.memory_format:
    for format_, ndim in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        if x.ndim == ndim and x.is_contiguous(memory_format=format_) and not x.is_contiguous():
            return format_
    return torch.contiguous_format
