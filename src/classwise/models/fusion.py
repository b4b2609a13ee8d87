"""Fused inference copies of networks: batch normalisation folded into convolutions, for gradients of images only."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from classwise.core.precision import Forward, Precision
from classwise.models.base import Classifier
from classwise.models.normalization import Normalized

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
_Forwards = Mapping[nn.Module, Callable[[Tensor], Tensor]]


@contextmanager
def fuse(model: nn.Module, precision: Precision) -> Iterator[Forward]:
    """Context of a faster forward pass of the model, for gradients with respect to images.

    A network of the zoo is copied and fused: batch normalisation after a convolution is folded into it, and weights are
    converted to the data type and memory format once instead of in every pass (linear layers stay in float32). Other
    models are not copied, since their Python code may have side effects, such as random noise or counters. For these,
    in lower precision, batch normalisation is a multiply-add (`affine_norms`) and the last linear layer runs in float32
    (`fine_logits`).

    Args:
        model: in evaluation mode, frozen, and not modified within the context.
        precision: precision of the passes. In float32 the copy's logits equal the model's up to rounding.
    """
    network = _traced(model) if _is_plain(model) else None
    if network is not None:
        yield _fused(model, network, precision)
    else:
        with affine_norms(model), fine_logits(model):
            yield precision.forward(model)


class _Tracer(fx.Tracer):
    """A tracer whose leaves are torch's layers and all subclasses of `nn.Linear`."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear) or super().is_leaf_module(m, module_qualified_name)


def _is_plain(model: nn.Module) -> bool:
    """Whether the model is a network of the zoo, normalised or not, without hooks or replaced forward passes."""
    network = model.model if isinstance(model, Normalized) else model
    return isinstance(network, Classifier) and all(_is_plain_layer(module) for module in model.modules())


def _is_plain_layer(module: nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module).__module__.startswith(_KNOWN) and not hooked and "forward" not in module.__dict__


_KNOWN = ("torch.nn.modules.", "classwise.models.")


def _fold_norms(network: fx.GraphModule) -> None:
    """Fold each batch normalisation into the preceding convolution, if its output has no other user."""
    calls = Counter(node.target for node in network.graph.nodes)
    layers = dict(network.named_modules())
    for node in network.graph.nodes:
        source = node.args[0] if node.op == "call_module" else None
        if not isinstance(source, fx.Node) or source.op != "call_module" or not _is_plain_norm(layers[node.target]):
            continue
        convolution = layers[str(source.target)]
        if type(convolution) is nn.Conv2d and len(source.users) == calls[source.target] == 1:
            network.set_submodule(str(source.target), fuse_conv_bn_eval(convolution, layers[node.target]))
            node.replace_all_uses_with(source)
            network.graph.erase_node(node)
    network.recompile()


def _traced(model: nn.Module) -> fx.GraphModule | None:
    """A traced copy of the network without `Normalized`; None if its control flow depends on its input."""
    own = copy.deepcopy(model.model if isinstance(model, Normalized) else model)
    try:
        return fx.GraphModule(own, _Tracer().trace(own))
    except fx.proxy.TraceError:
        return None


def _fused(model: nn.Module, network: fx.GraphModule, precision: Precision) -> Forward:
    """The forward pass of the copy, which is modified in place."""
    dtype = getattr(torch, precision.dtype)
    _fold_norms(network)
    for module in network.modules():
        if _is_plain_norm(module):
            module.forward = _affine(module, torch.float32)  # type: ignore[assignment, method-assign]  # on the instance
        elif type(module) is nn.Conv2d:
            module.to(dtype)
        elif type(module) is nn.Linear:
            module.forward = _exact(module)  # type: ignore[assignment, method-assign]  # on the instance
    precision.prepare(network.requires_grad_(requires_grad=False))
    scale = 1 / model.std if isinstance(model, Normalized) else None
    shift = -model.mean / model.std if isinstance(model, Normalized) else None

    def run(x: Tensor) -> Tensor:
        x = precision.to_memory_format(x)
        if scale is not None and shift is not None:
            x = torch.addcmul(shift, x, scale)
        logits: Tensor = network(x.to(dtype))
        return logits.float()

    return run


@contextmanager
def fine_logits(model: nn.Module) -> Iterator[None]:
    """Run the last linear layer in the precision of its weights, also under autocast; restore it afterwards.

    In bfloat16 a logit has three significant digits, too few to resolve small changes. The last layer is the last
    `nn.Linear` in ``model.modules()``; if the logits come from another layer, this only costs a little time.
    """
    last = [module for module in model.modules() if type(module) is nn.Linear][-1:]
    with _replaced({layer: _exact(layer) for layer in last if "forward" not in layer.__dict__}):
        yield


def _exact(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """The layer's forward pass in the precision of its weights."""
    original: Callable[[Tensor], Tensor] = layer.forward

    def forward(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return original(x.to(layer.weight.dtype))

    return forward


@contextmanager
def affine_norms(model: nn.Module) -> Iterator[int]:
    """Run batch normalisation as a multiply-add on inputs of lower precision; restore it afterwards.

    PyTorch's kernel also computes the gradients of scale and shift, which an attack on a frozen model discards: its
    backward pass takes about four times as long. In float32 no bit changes. The statistics are read once, so the model
    must remain in evaluation mode with unchanged weights within the context.

    Yields:
        The number of replaced layers: instances of torch's own classes, in evaluation mode, with running statistics.
    """
    changed: _Forwards = {module: _affine(module) for module in model.modules() if _is_plain_norm(module)}
    with _replaced(changed):
        yield len(changed)


@contextmanager
def _replaced(forwards: _Forwards) -> Iterator[None]:
    """Replace the forward passes of these layers; restore them afterwards."""
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module in forwards:
            del module.forward


def _is_plain_norm(module: nn.Module) -> TypeGuard[BatchNorm]:
    if type(module) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) or "forward" in module.__dict__:
        return False
    return not module.training and module.running_mean is not None


def _affine(norm: BatchNorm, *more: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The layer's forward pass: a multiply-add for inputs in float16, bfloat16 or the data types ``more``."""
    original: Callable[[Tensor], Tensor] = norm.forward
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        scale = (norm.running_var.float() + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean * scale
        shift = shift if norm.bias is None else shift + norm.bias
    ready: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def like(x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift expanded to one image, in its memory format: several times faster on a CPU."""
        format_ = _format(x)
        key = x.shape[1:], x.dtype, format_
        if key not in ready:
            ready[key] = tuple(  # type: ignore[assignment]  # torch has no type for two in, two out
                value.to(x.dtype)
                .view(1, -1, *[1] * (x.ndim - 2))
                .expand(1, *x.shape[1:])
                .contiguous(memory_format=format_)
                for value in (scale, shift)
            )
        return ready[key]

    def forward(x: Tensor) -> Tensor:
        if x.dtype not in (torch.bfloat16, torch.float16, *more) or x.ndim < 3:
            return original(x)
        spread, offset = like(x)
        return torch.addcmul(offset, x, spread)

    return forward


def _format(x: Tensor) -> torch.memory_format:
    for format_, ndim in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        if x.ndim == ndim and x.is_contiguous(memory_format=format_) and not x.is_contiguous():
            return format_
    return torch.contiguous_format
