"""Faster passes for gradients of images: on a fused copy of the model that was verified against it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from classwise.core.compute.compilation import Compiling, Outputs, difference
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.memory_format import format_of
from classwise.core.compute.precision import Forward, Precision
from classwise.core.compute.rng import generators_restored
from classwise.core.errors import first_line
from classwise.models.affine import AffineNorms
from classwise.models.functions import FunctionModel
from classwise.models.fused_copy import FusedCopy, fine_logits, foldable
from classwise.models.logits import LogitsModel, raised
from classwise.models.modes import wrong_gradients_refused

VERIFIED_IMAGES = 8
"""Number of images on which a copy is compared with its model."""
TOLERANCE = 1e-5
"""Largest difference between logits in float32, as a fraction of the largest logit."""
GRADIENT_TOLERANCE = 0.1
"""Largest median over the images of the difference between gradients in float32, as a fraction of the gradient's norm.

Gradients jump where a rounding error changes which input of a ReLU or of max pooling is the larger one: by 1 % in
Inception-v3, and for single images in other networks. Other differences are detected in the logits.
"""

_SCALARS = (bool, int, float, complex, str, bytes)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OPAQUE = (torch.jit.ScriptModule, nn.DataParallel, nn.parallel.DistributedDataParallel, FunctionModel)


class Fusion:
    """Fused copies of one model for gradients with respect to images, one for each precision.

    In a copy, batch normalisation is folded into the convolution or linear layer before it if that layer's output has
    no other user (`foldable`), and is a multiply-add otherwise (`AffineNorms`). Weights of convolutions and linear
    layers are converted to the data type and memory format once, not in every pass. All other code of the model runs
    unchanged, on the copy.

    A copy is used only if its logits and gradients equal the model's on real images in float32. Its tensors are
    refreshed from the model at each use; it is made again if structure or attributes of the model have changed. The
    model itself is not modified.

    Args:
        model: the model.

    Attributes:
        unfused: why the last passes used the model itself; empty if they used a copy.
    """

    def __init__(self, model: nn.Module) -> None:
        self.unfused = ""
        self._model = model
        self._norms = AffineNorms(model)
        self._snapshot: Snapshot | None = None
        self._copies: dict[Precision, FusedCopy | str] = {}
        self._folds: dict[str, str] | None = None

    @contextmanager
    def forward(
        self, precision: Precision, images: Tensor, compiling: Compiling | None = None, *, objection: str = ""
    ) -> Iterator[Forward]:
        """Context of a forward pass: that of a copy, or that of the model if no copy equals it.

        In lower precision, passes of the model itself run batch normalisation as a multiply-add, and the last linear
        layer in float32 (`fine_logits`). The model must be in evaluation mode, frozen, and not modified within the
        context.

        Args:
            precision: precision of the passes.
            images: (N, C, H, W) in [0, 1], N >= 1, on the model's device; a new copy is verified on the first
                `VERIFIED_IMAGES`.
            compiling: which passes are compiled; those of the model itself only with ``compile = on``, without these
                changes.
            objection: why the copy would not equal the model; empty if nothing is known.
        """
        snapshot = Snapshot(self._model)
        if snapshot != self._snapshot:
            self._snapshot, self._copies, self._folds = snapshot, {}, None
        if precision not in self._copies:
            objection = objection or _objection(self._model)
            self._copies[precision] = objection or self._verified(precision, images[:VERIFIED_IMAGES])
        fused = self._copies[precision]
        if isinstance(fused, FusedCopy):
            self.unfused = ""
            fused.refresh()
            fused.forward.compile(compiling)
            yield fused.forward
            return
        self.unfused = fused
        forward = precision.forward(self._model)
        if precision.compile == "on":
            forward.compile(compiling)
            yield forward
        elif precision.dtype == "float32":
            yield forward
        else:
            with self._norms.replaced(), fine_logits(self._model):
                yield forward

    def _verified(self, precision: Precision, images: Tensor) -> FusedCopy | str:
        """A copy that equals the model on the images, or the reason why there is none."""
        try:
            if self._folds is None:
                self._folds = foldable(self._model)
            fused = FusedCopy(self._model, self._folds, precision)
            reason = _difference(self._model, fused.network, precision, images)
            if not reason and precision.dtype != "float32":
                fused.lower(getattr(torch, precision.dtype))
                with generators_restored(images.device):
                    _logits_and_gradient(fused.forward, images)  # fails if the model's code requires float32 weights
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # user code on a copy with other layers may raise any error
            return f"its copy fails ({type(error).__name__}: {first_line(error)})"
        return reason or fused


def _objection(model: nn.Module) -> str:
    """Why a model cannot be copied: its passes have effects or an implementation that a copy would lack."""
    if any(getattr(torch_module, f"_global{hooks}") for hooks in _HOOKS):
        return "there are hooks on all modules"
    for name, module in model.named_modules():
        own = name.removeprefix("model").removeprefix(".") if isinstance(model, LogitsModel) else name
        where = f"its layer {own!r}" if own else "it"
        if isinstance(module, _OPAQUE):
            return f"{where} is a {type(module).__name__}"
        if any(getattr(module, hooks) for hooks in _HOOKS):
            return f"{where} has hooks"
        if "forward" in vars(module) or module._compiled_call_impl is not None:
            return f"{where} has a forward pass that was replaced"
    tensors = [*model.parameters(), *model.buffers()]
    if len({tensor.device for tensor in tensors}) > 1:
        return "it is on several devices"
    other = {parameter.dtype for parameter in model.parameters()} - {torch.float32}
    return f"it has weights in {str(min(other, key=str)).removeprefix('torch.')}" if other else ""


def _difference(model: nn.Module, network: nn.Module, precision: Precision, images: Tensor) -> str:
    """How a copy differs from its model on images, in float32; empty if it does not."""
    exact = dataclasses.replace(precision, dtype="float32")
    before = Snapshot(model, values=True)
    with true_float32(images.device), generators_restored(images.device):
        forward = exact.forward(model)
        expected = format_of(model).run(lambda: _logits_and_gradient(forward, images), model, images.device)
    if Snapshot(model, values=True) != before:
        return "its forward pass modifies its attributes"
    with true_float32(images.device), generators_restored(images.device):
        found = _logits_and_gradient(exact.forward(network), images)
    differs = difference(expected, found, TOLERANCE, GRADIENT_TOLERANCE)
    return differs and f"its copy's {differs}"


def _logits_and_gradient(forward: Forward, images: Tensor) -> Outputs:
    """The logits of images, and the gradient with respect to them."""
    with torch.enable_grad(), wrong_gradients_refused():
        leaf = images.detach().clone().requires_grad_()
        logits = raised(forward(leaf))
        gradient = None
        if logits.requires_grad:
            weights = torch.arange(1.0, logits.shape[1] + 1, device=logits.device).cos()
            (gradient,) = torch.autograd.grad((logits * weights).sum(), leaf, allow_unused=True)
    return logits.detach(), gradient


class Snapshot:
    """The modules of a model and their attributes: hooks, flags, numbers, and the identity of all other objects.

    Containers are compared by their elements. Tensors outside of parameters and buffers are compared by their number of
    modifications.

    Args:
        model: the model.
        values: also compare parameters and buffers by their number of modifications.
    """

    def __init__(self, model: nn.Module, *, values: bool = False) -> None:
        self._objects = list(_objects(model))  # references, so that identities are not reused
        if values:
            tensors = [*model.parameters(), *model.buffers()]
            self._objects += [tensor._version for tensor in tensors if not tensor.is_inference()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot) or len(self._objects) != len(other._objects):
            return False
        return all(_same(first, second) for first, second in zip(self._objects, other._objects, strict=True))

    __hash__ = None  # type: ignore[assignment]  # compared by value


def _same(one: object, two: object) -> bool:
    return one is two or (type(one) is type(two) and isinstance(one, _SCALARS) and one == two)


def _objects(model: nn.Module) -> Iterator[object]:
    for module in model.modules():
        yield module
        for name, value in vars(module).items():
            yield name
            yield value
            if isinstance(value, Tensor):
                yield None if value.is_inference() else value._version
            elif isinstance(value, Mapping):
                for key, item in value.items():
                    yield key
                    yield item
            elif isinstance(value, list | tuple | set | frozenset):
                yield from value
