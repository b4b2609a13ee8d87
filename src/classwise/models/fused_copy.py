"""The copy of a model with fused layers, in the data type and memory format of its passes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.compute.memory_format import copy_of
from classwise.core.compute.precision import Precision
from classwise.models.affine import LOWER, AffineNorms, BatchNorm, is_plain_norm, replaced
from classwise.models.folding import Layer, folded

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class FusedCopy:
    """A fused copy of a frozen model in evaluation mode, in float32 until `lower` is called.

    Args:
        model: the model.
        folds: the names of normalisation layers to fold, and of the layers to fold them into (`foldable`).
        precision: memory format and data type of the passes.

    Attributes:
        network: the copy.
        forward: its forward pass.
    """

    def __init__(self, model: nn.Module, folds: Mapping[str, str], precision: Precision) -> None:
        self._model = model
        self.network = copy_of(model).requires_grad_(requires_grad=False)
        self.forward = precision.forward(self.network)
        precision.prepare(self.network)
        self._folds = self._fold(folds)
        self._norms = AffineNorms(self.network, (torch.float32, *LOWER))
        self._affine = [module for module in self.network.modules() if is_plain_norm(module)]
        for norm, forward in self._norms.refreshed(self._affine).items():
            norm.forward = forward
        self._linears: list[_FineLinear] = []
        self.refresh()

    def _fold(self, folds: Mapping[str, str]) -> dict[str, tuple[Layer, Layer, BatchNorm]]:
        """Replace normalisation by the identity; return the layer before it, and the layer and norm of the model."""
        layers = {}
        for norm, layer in folds.items():
            own, source = (cast("Layer", model.get_submodule(layer)) for model in (self.network, self._model))
            # Its own parameters, since other layers may share those of the model.
            own.weight = nn.Parameter(torch.zeros_like(source.weight), requires_grad=False)
            own.bias = nn.Parameter(source.weight.new_zeros(len(source.weight)), requires_grad=False)
            self.network.get_submodule(norm).forward = _identity
            layers[layer] = own, source, cast("BatchNorm", self._model.get_submodule(norm))
        return layers

    def lower(self, dtype: torch.dtype) -> None:
        """Convert the weights of convolutions and linear layers, except for linear layers after all convolutions.

        These compute features of images, (N, F), in float32, so that logits are fine enough, and other inputs, such as
        (N, positions, F), in the lower data type.
        """
        layers = [m for m in self.network.modules() if isinstance(m, nn.Linear) or type(m) in _CONVOLUTIONS]
        last = set(itertools.takewhile(lambda layer: isinstance(layer, nn.Linear), reversed(layers)))
        for layer in layers:
            if type(layer) is nn.Linear and layer in last:
                self._linears.append(_FineLinear(layer, dtype))
                layer.forward = self._linears[-1]  # type: ignore[assignment, method-assign]  # on the instance
            elif layer not in last and type(layer) in (nn.Linear, *_CONVOLUTIONS):
                layer.to(dtype)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the model's current weights and statistics into the existing tensors."""
        sources, targets = _tensors(self._model), _tensors(self.network)
        names = [name for name in sources if name.rpartition(".")[0] not in self._folds]
        torch._foreach_copy_([targets[name] for name in names], [sources[name] for name in names])
        if self._folds:
            layers, layers_of_model, norms = zip(*self._folds.values(), strict=True)
            weights, biases = folded(layers_of_model, norms)
            torch._foreach_copy_([layer.weight for layer in layers], weights)
            torch._foreach_copy_([cast("Tensor", layer.bias) for layer in layers], biases)
        self._norms.refreshed(self._affine)
        for linear in self._linears:
            linear.refresh()


class _FineLinear:
    """The forward pass of a linear layer in float32 for inputs (N, F), and in a lower data type for others."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        self._layer = layer
        self._dtype = dtype
        self._lower: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        layer = self._layer
        if x.ndim > 2:
            self._lower = self._lower or [tensor.to(self._dtype) for tensor in layer.parameters()]
            return F.linear(x, *self._lower)
        return _exact(layer, x)

    def refresh(self) -> None:
        """Convert the layer's current parameters."""
        if self._lower:
            torch._foreach_copy_(self._lower, list(self._layer.parameters()))


@contextmanager
def fine_logits(model: nn.Module) -> Iterator[None]:
    """Run the last linear layer in the precision of its weights, also under autocast; restore it afterwards.

    In bfloat16 a logit has three significant digits, too few to resolve small changes. The last layer is the last
    `nn.Linear` in ``model.modules()``; if the logits come from another layer, this only costs a little time.
    """
    last = [module for module in model.modules() if type(module) is nn.Linear][-1:]
    with replaced({layer: functools.partial(_exact, layer) for layer in last if "forward" not in layer.__dict__}):
        yield


def _exact(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer's output in the precision of its weights, also under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(layer.weight.dtype), layer.weight, layer.bias)


def _identity(x: Tensor) -> Tensor:
    return x


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, also those under several names."""
    return dict(
        itertools.chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    )
