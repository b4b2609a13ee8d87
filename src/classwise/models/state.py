"""`ModelState`: the state of a model at one moment, to which it is restored after code of a user has run on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from classwise.models.base import Wrapper
from classwise.models.weights import is_dense

_SHOWN = 3
"""Number of changes that `changes_text` names."""
_CHILDREN = ("_parameters", "_buffers", "_modules")


class ModelState:
    """The parameters, buffers, submodules and modes of a model, and which parameters require gradients.

    Values are those of dense tensors; others, such as packed weights of quantised layers, are not compared.

    Args:
        model: the model.

    Example:
        >>> import torch
        >>> from classwise.models.state import ModelState
        >>> layer = torch.nn.Linear(2, 2)
        >>> state = ModelState(layer)
        >>> _ = layer.eval().bias.data.fill_(1)
        >>> state.restore()
        ('the mode', "parameter 'bias'")
        >>> layer.training, state.restore()
        (True, ())
    """

    def __init__(self, model: nn.Module) -> None:
        self._prefix = _prefix(model)
        self._modules = [
            (self._named(name), module, getattr(module, "training", None), _children(module))
            for name, module in model.named_modules()
        ]
        tensors = {"parameter": model.named_parameters(), "buffer": model.named_buffers()}
        self._tensors = [
            _SavedTensor(f"{kind} {self._named(name)!r}", tensor)
            for kind, named in tensors.items()
            for name, tensor in named
        ]
        self._ignored: set[str] = set()

    def ignore_changes_of(self, call: Callable[[], object]) -> None:
        """Ignore the tensors that a call changes, such as buffers that count passes; the call is undone."""
        call()
        self._ignored |= set(self.restore())

    def restore(self, *, values: bool = True) -> tuple[str, ...]:
        """Restore the model.

        Args:
            values: compare all values. False: only those of tensors whose in-place operations were counted by torch,
                without access to the device.

        Returns:
            What had changed, such as ``"parameter 'fc.weight'"``; empty if nothing had.
        """
        changed: list[str] = []
        for name, module, training, children in self._modules:
            for attribute, saved in children.items():
                found = getattr(module, attribute)
                if list(map(id, found.values())) != list(map(id, saved.values())) or [*found] != [*saved]:
                    kinds = {"_parameters": "the parameters", "_buffers": "the buffers", "_modules": "the submodules"}
                    changed.append(f"{kinds[attribute]}{_of(name)}")
                    found.clear()
                    found.update(saved)
            if training is not None and module.training != training:
                changed.append(f"the mode{_of(name)}")
                module.training = training
        changed += [text for tensor in self._tensors for text in tensor.restore(values=values)]
        return tuple(text for text in changed if text not in self._ignored)

    def _named(self, name: str) -> str:
        """The name without those of wrappers."""
        return "" if f"{name}." == self._prefix else name.removeprefix(self._prefix)


class _SavedTensor:
    """A parameter or buffer with a copy of its values."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        self._name, self._tensor = name, tensor
        self._requires_grad, self._grad = tensor.requires_grad, tensor.grad
        self._values = tensor.detach().clone() if is_dense(tensor) else None
        self._version = _version(tensor)

    def restore(self, *, values: bool) -> Iterable[str]:
        """Restore the tensor; yield what had changed."""
        tensor, saved = self._tensor, self._values
        if tensor.requires_grad != self._requires_grad:
            yield f"requires_grad of {self._name}"
            tensor.requires_grad_(self._requires_grad)
        if tensor.grad is not self._grad:
            tensor.grad = self._grad
        if saved is None or not (values or _version(tensor) != self._version):
            return
        if not _same(tensor, saved):
            yield self._name
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if (tensor.dtype, tensor.device, tensor.shape) == (saved.dtype, saved.device, saved.shape):
                    tensor.copy_(saved)
                else:
                    tensor.data = saved.clone()
        self._version = _version(tensor)


def changes_text(changes: Iterable[str]) -> str:
    """The first of some changes, and the number of others.

    Example:
        >>> changes_text(["the mode", "parameter 'a'", "parameter 'b'", "parameter 'c'"])
        "the mode, parameter 'a', parameter 'b' and 1 more"
    """
    names = [*dict.fromkeys(changes)]
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class Buffers:
    """The buffers of a model, to find those that its passes change.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._prefix = model, _prefix(model)
        self._saved = {
            name: (buffer, _version(buffer), buffer.detach().clone())
            for name, buffer in model.named_buffers()
            if is_dense(buffer)
        }

    def changed(self) -> list[str]:
        """The buffers that have other values now, such as ``"buffer 'count'"``; those that were added are no change."""
        changed = []
        for name, buffer in self._model.named_buffers():
            before, version, values = self._saved.get(name, (buffer, _version(buffer), buffer))
            if (buffer is not before or _version(buffer) != version) and not _same(buffer, values):
                changed.append(f"buffer {name.removeprefix(self._prefix)!r}")
        return changed


def _prefix(model: nn.Module) -> str:
    """What wrappers put before the names of the parameters of a network."""
    depth = 0
    while isinstance(model, Wrapper):
        model, depth = model.model, depth + 1
    return "model." * depth


def _children(module: nn.Module) -> Mapping[str, dict[str, Any]]:
    """The parameters, buffers and submodules of a module; none of TorchScript, whose modules have a fixed structure."""
    if isinstance(module, torch.jit.ScriptModule):
        return {}
    return {attribute: dict(getattr(module, attribute)) for attribute in _CHILDREN}


def _of(name: str) -> str:
    return f" of {name!r}" if name else ""


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _same(tensor: Tensor, saved: Tensor) -> bool:
    """Whether the values of two tensors are equal; a NaN equals a NaN."""
    if (tensor.dtype, tensor.device, tensor.shape) != (saved.dtype, saved.device, saved.shape):
        return False
    with torch.no_grad():
        if torch.equal(tensor, saved):
            return True
        either = (tensor == saved) | (tensor.isnan() & saved.isnan())
        return bool(either.all())
