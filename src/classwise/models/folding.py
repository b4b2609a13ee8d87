"""Batch normalisation folded into the layer before it: which layers, and with which weights."""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from torch import Tensor, fx, nn

from classwise.models.affine import BatchNorm, Statistics, is_plain_norm

Layer = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
"""A layer that batch normalisation is folded into."""


def foldable(model: nn.Module) -> dict[str, str]:
    """The name of the layer before each batch normalisation, where the layer's output has no other user.

    A copy of the model is traced symbolically (`torch.fx`). If a module cannot be traced, for example because its
    control flow depends on its input, each of its submodules is traced instead.

    Args:
        model: in evaluation mode.
    """
    if not any(is_plain_norm(module) for module in model.modules()):
        return {}
    traced = copy.deepcopy(model)  # the model's code may store the symbolic values
    names = {module: name for name, module in traced.named_modules()}
    uses: defaultdict[nn.Module, _Uses] = defaultdict(_Uses)
    for root, graph in _graphs(traced):
        modules = dict(root.named_modules())
        for node in graph.nodes:
            if node.op == "call_module":
                uses[modules[node.target]].sources.append(_source(node, modules))
            elif node.op == "get_attr":
                uses[modules[node.target.rpartition(".")[0]]].read = True
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


class _Tracer(fx.Tracer):
    """A tracer whose leaves are torch's layers and all modules without submodules."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return next(m.children(), None) is None or super().is_leaf_module(m, module_qualified_name)


def _graphs(module: nn.Module) -> Iterator[tuple[nn.Module, fx.Graph]]:
    """The graph of a module, or those of its submodules if it cannot be traced."""
    if next(module.children(), None) is None:
        return
    try:
        _, *others = inspect.signature(module.forward).parameters.values()
        defaults = {other.name: other.default for other in others if other.default is not other.empty}
        graph = _Tracer().trace(module, concrete_args=defaults)
    except Exception:  # noqa: BLE001  # user code that meets a proxy in place of a tensor may raise any error
        for child in module.children():
            yield from _graphs(child)
    else:
        yield module, graph
