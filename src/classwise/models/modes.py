"""Context managers for evaluation mode, frozen parameters and missing gradients, which restore what was there.

Several threads may use one model: what the first context changes, the last one restores.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from classwise.core.settings.thread_warnings import warnings_filtered
from classwise.models.base import Wrapper
from classwise.models.functions import FunctionModel
from classwise.models.state import ModelState

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, Wrapper, FunctionModel)
"""Modules whose own code does not depend on their mode."""
_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
"""The packages of layers in int8, which have no modes, but which torch creates in training mode."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[bool]:
    """Set a model to evaluation mode by its own `eval`; restore modes and weights exactly, also after an exception.

    A module with a `train` or `eval` of its own may swap its weights there, as averaged weights and merged adapters do,
    or keep some layers in training mode. It is called only if one of its submodules is in training mode.

    Yields:
        Whether a module with a mode of its own was in training mode, and is not any more.
    """
    with _switched(_modes(model)) as switched:
        yield any(switched)


def set_evaluation_mode(model: nn.Module) -> None:
    """Set a model to evaluation mode by its own `eval`, if a submodule is in training mode."""
    for _, change in list(_modes(model)):
        change()


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Set ``requires_grad`` of every parameter to False; restore each afterwards.

    Parameters and buffers created in `torch.inference_mode` cannot be used in a gradient of the images. They are
    replaced by copies within the context.
    """
    with _recordable(model), _switched(_learning(model)):
        yield


@dataclass
class _Switch:
    """A change of an object: the contexts that are open, what the change returned, and how it is undone."""

    target: object  # a reference, so that its identity is not reused
    found: bool
    undo: Callable[[], None]
    contexts: int = 1


_lock = threading.RLock()
_switches: dict[int, _Switch] = {}

_Change = Callable[[], tuple[bool, Callable[[], None]]]
"""Changes an object; returns a finding, and a function that undoes the change."""


@contextmanager
def _switched(changes: Iterable[tuple[object, _Change]]) -> Iterator[list[bool]]:
    """Context with some changes, each of them made once for all open contexts; yields the findings."""
    entered: list[_Switch] = []
    try:
        with _lock:
            for target, change in changes:
                switch = _switches.get(id(target))
                if switch is None:
                    switch = _switches[id(target)] = _Switch(target, *change())
                else:
                    switch.contexts += 1
                entered.append(switch)
        yield [switch.found for switch in entered]
    finally:
        with _lock:
            for switch in reversed(entered):
                switch.contexts -= 1
                if not switch.contexts:
                    del _switches[id(switch.target)]
                    switch.undo()


def _modes(model: nn.Module) -> Iterator[tuple[nn.Module, _Change]]:
    """The modules of a model that are in training mode, or that a context has switched, and how each is switched.

    A module with a `train` of its own is one of them if a submodule is; its submodules are not.
    """
    pending, seen = [(model, True)], set[nn.Module]()
    while pending:
        module, is_root = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        if _has_own_switch(module, is_root=is_root):
            inner = list(module.modules())
            seen.update(inner)
            if id(module) in _switches or any(_is_training(submodule) for submodule in inner):
                yield module, functools.partial(_call_eval, module, is_root=is_root)
            continue
        if id(module) in _switches or _is_training(module):
            yield module, functools.partial(_set_flag, module)
        inside = isinstance(module, Wrapper | FunctionModel)
        pending += [(child, inside) for child in module.children()]


def _is_training(module: nn.Module) -> bool:
    return bool(getattr(module, "training", False))  # frozen TorchScript has no such attribute


def _has_own_switch(module: nn.Module, *, is_root: bool) -> bool:
    """Whether `eval` of the model runs code of this module: `train`, or `eval` for the model of the user itself."""
    kind, own = type(module), vars(module)
    return (
        kind.train is not nn.Module.train
        or "train" in own
        or (is_root and (kind.eval is not nn.Module.eval or "eval" in own))
    )


def _set_flag(module: nn.Module) -> tuple[bool, Callable[[], None]]:
    module.training = False
    has_mode = not isinstance(module, _CONTAINERS) and not type(module).__module__.startswith(_QUANTISED)
    return has_mode, functools.partial(setattr, module, "training", True)


def _call_eval(module: nn.Module, *, is_root: bool) -> tuple[bool, Callable[[], None]]:
    """Call the `eval` of a module, or its `train` as `eval` of the module around it does."""
    state = ModelState(module)
    flags = [(submodule, _is_training(submodule)) for submodule in module.modules()]

    def undo() -> None:
        try:
            if flags[0][1]:
                module.train()
        finally:
            state.restore()

    def restore() -> None:
        state.restore()

    try:
        module.eval() if is_root else module.train(False)
    except NotImplementedError:  # an exported program, which has no modes
        for submodule, training in flags:
            if training:
                submodule.training = False
        return False, restore
    except BaseException:
        restore()
        raise
    return any(training and not _is_training(submodule) for submodule, training in flags), undo


def _learning(model: nn.Module) -> Iterator[tuple[nn.Parameter, _Change]]:
    """The parameters that learn, or that a context has frozen, and how each is frozen."""
    for parameter in model.parameters():
        if parameter.requires_grad or id(parameter) in _switches:
            yield parameter, functools.partial(_freeze, parameter)


def _freeze(parameter: nn.Parameter) -> tuple[bool, Callable[[], None]]:
    parameter.requires_grad_(False)
    return True, functools.partial(setattr, parameter, "requires_grad", True)


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
    with warnings_filtered("error", f".*{_NO_DERIVATIVE}"):
        try:
            yield
        except UserWarning as warning:
            operation, found, _ = str(warning).partition(f": {_NO_DERIVATIVE}")
            if not found:
                raise
            raise RuntimeError(f"{operation} has no gradient") from warning


_NO_DERIVATIVE = "an autograd kernel was not registered"
