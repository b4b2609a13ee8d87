"""The copy of a model with fused layers in the data type and memory format of its passes; which layers are folded."""

from __future__ import annotations

import copy
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.compute.memory_format import copy_of
from classwise.core.compute.precision import Precision
from classwise.models.affine import LOWER, AffineNorms, BatchNorm, Statistics, is_plain_norm, replaced

Layer = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
"""A layer that batch normalisation is folded into."""


def foldable(model: nn.Module) -> dict[str, str]:
    """The name of the layer before each batch normalisation, where the layer's output has no other user.

    A copy of the model is traced symbolically (`torch.fx`), without effect on other threads. If a module cannot be
    traced, for example because its control flow depends on its input, each of its submodules is traced instead.

    Args:
        model: in evaluation mode.
    """
    if not any(is_plain_norm(module) for module in model.modules()):
        return {}
    traced = copy.deepcopy(model)  # the model's code may store the symbolic values
    names = {module: name for name, module in traced.named_modules()}
    of_model = {module: model.get_submodule(name) for module, name in names.items()}
    uses: defaultdict[nn.Module, _Uses] = defaultdict(_Uses)
    tracer = _Tracer(traced)
    for root, graph in _graphs(traced, tracer):
        modules = {name: of_model[module] for name, module in root.named_modules()}
        for node in graph.nodes:
            if node.op == "call_module":
                uses[modules[node.target]].sources.append(_source(node, modules))
            elif node.op == "get_attr":
                uses[modules[node.target.rpartition(".")[0]]].read = True
    names = {of_model[module]: name for module, name in names.items()}
    found = {}
    for norm, use in uses.items():
        layer = use.sources[0] if len(set(use.sources)) == 1 else None
        if not is_plain_norm(norm) or not _is_plain_layer(layer) or norm.num_features != len(layer.weight):
            continue
        if len(uses[layer].sources) == len(use.sources) and not uses[layer].read:
            found[names[norm]] = names[layer]
    return found


@dataclass
class _Uses:
    """The uses of a module: the source of each call, and whether the code of a container reads its parameters."""

    sources: list[nn.Module | None] = field(default_factory=list)
    read: bool = False


@torch.no_grad()
def folded(layers: Sequence[Layer], norms: Sequence[BatchNorm]) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases of layers that each compute a layer followed by batch normalisation."""
    statistics = Statistics.of(norms)
    scales = [
        scale.view(-1, *[1] * (layer.weight.ndim - 1)) for scale, layer in zip(statistics.scales(), layers, strict=True)
    ]
    weights = torch._foreach_mul([layer.weight for layer in layers], scales)
    biases = [
        torch.zeros_like(mean) if layer.bias is None else layer.bias
        for layer, mean in zip(layers, statistics.means, strict=True)
    ]
    centred = torch._foreach_mul(torch._foreach_sub(biases, statistics.means), statistics.inverse_stds)
    scaled = torch._foreach_mul(centred, statistics.weights)
    return list(weights), list(torch._foreach_add(scaled, statistics.biases))


def _source(node: fx.Node, modules: dict[str, nn.Module]) -> nn.Module | None:
    """The module whose output is the only argument of a call and has no other user; None if there is none."""
    source = node.args[0] if len(node.args) == 1 and not node.kwargs else None
    if isinstance(source, fx.Node) and source.op == "call_module" and len(source.users) == 1:
        return modules[str(source.target)]
    return None


def _is_plain_layer(module: nn.Module | None) -> TypeGuard[Layer]:
    return type(module) in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class _Traced(nn.Module):
    """Base class of the modules of a copy that is traced: their calls and parameters are recorded by a tracer."""

    _tracer: _Tracer

    def __init_subclass__(cls) -> None:
        """Do nothing: the code of the model's own classes runs once, for those classes."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._tracer.call_module(self, super().__call__, args, options)

    def __getattr__(self, name: str) -> Any:
        return self._tracer.getattr(name, super().__getattr__(name), self._tracer.parameters)


class _Tracer(fx.Tracer):
    """A tracer of the modules of a copy, whose leaves are torch's layers and all modules without submodules.

    `fx.Tracer.trace` replaces the methods of `nn.Module` while it runs, for all threads of the process. Here the
    modules of the copy become instances of subclasses with these methods.
    """

    def __init__(self, copied: nn.Module) -> None:
        super().__init__()
        self.parameters: dict[str, fx.Proxy] = {}
        for module in copied.modules():
            kind = type(module)
            metaclass: Any = type(kind)
            about = {"_tracer": self, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
            with suppress(TypeError):  # a class with another layout; its code is traced, and it is not folded
                module.__class__ = metaclass(kind.__name__, (_Traced, kind), about)

    def graph_of(self, root: nn.Module) -> fx.Graph:
        """The graph of a module of the copy, called with one argument."""
        self.root, self.graph, self.parameters = root, fx.Graph(tracer_cls=type(self)), {}
        self.submodule_paths = {module: name for name, module in root.named_modules()}
        self.tensor_attrs = {}
        output = root.forward(self.create_proxy("placeholder", "x", (), {}))
        self.create_node("output", "output", (self.create_arg(output),), {})
        return self.graph

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return next(m.children(), None) is None or super().is_leaf_module(m, module_qualified_name)


def _graphs(module: nn.Module, tracer: _Tracer) -> Iterator[tuple[nn.Module, fx.Graph]]:
    """The graph of a module, or those of its submodules if it cannot be traced."""
    if next(module.children(), None) is None:
        return
    try:
        graph = tracer.graph_of(module)
    except Exception:  # noqa: BLE001  # user code that meets a proxy in place of a tensor may raise any error
        for child in module.children():
            yield from _graphs(child, tracer)
    else:
        yield module, graph


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
