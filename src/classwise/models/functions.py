"""Functions from images to logits, and models in the protocol of MAITE (without importing the package), as modules."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from classwise.core.compute.tensors import as_tensor
from classwise.core.errors import ClasswiseError
from classwise.core.settings.code_identity import bytecode, names_in
from classwise.core.settings.user_code import call_user_code
from classwise.data.maite import class_names_of, has_metadata
from classwise.models.unwrapping import DATA_PARALLEL, unwrapped

T = TypeVar("T")

_MOST = 1000
"""Maximum number of objects searched for modules."""
_LIBRARIES = ("torch", "numpy", "builtins")
_POSITIONAL, _POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY


class FunctionModel(nn.Module):
    """A function from images (N, C, H, W) in [0, 1] to logits (N, classes), as a module.

    The modules that the function refers to (in its closure, arguments, object or global names) become submodules. They
    are moved to the device, and are in evaluation mode during an audit. The buffer ``digest`` identifies the code.

    Args:
        function: called with a batch of images; any output accepted by `classwise.models.logits.pick_logits`.

    Raises:
        ClasswiseError: if it is a class, whose instances would be models.
    """

    digest: Tensor

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        if isinstance(function, type):
            raise ClasswiseError(
                f"the model is the class {function.__name__}; give an instance, {function.__name__}(...)"
            )
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self._function = function
        modules, codes = _contents(function)
        _check_passes(modules)
        for number, module in enumerate(modules):
            self.add_module(f"module{number}", module)
        digest = hashlib.sha256("\n".join(sorted(codes)).encode()).digest()
        self.register_buffer("digest", torch.frombuffer(bytearray(digest), dtype=torch.uint8))
        self.training = False

    def forward(self, x: Tensor) -> object:
        """The function's output."""
        return call_user_code(self._function, x)


def _check_passes(modules: Iterable[nn.Module]) -> None:
    """Check that the passes of a function do not wait for other processes.

    Raises:
        ClasswiseError: if one of its modules exchanges tensors with them.
    """
    for module in (submodule for found in modules for submodule in found.modules()):
        group = getattr(module, "process_group", None) if isinstance(module, DATA_PARALLEL) else None
        if group is not None and group.size() > 1:
            raise ClasswiseError(
                f"the function calls a {type(module).__name__}, which waits for the other processes in each pass, and "
                "these take other numbers of passes; call its attribute module instead"
            )
        unwrapped(module)


def as_module(model: nn.Module | Callable[[Tensor], object]) -> nn.Module:
    """The model as a module, without the wrappers of parallel training and of `torch.compile` (`unwrapped`).

    Raises:
        ClasswiseError: if it is neither a module nor a function, or its weights are distributed over processes.
    """
    if isinstance(model, nn.Module):
        return unwrapped(model)
    if not callable(model):
        raise ClasswiseError(f"the model is a {type(model).__name__}; give a module, a function or the name of a model")
    return FunctionModel(model)


def _contents(function: object) -> tuple[list[nn.Module], list[str]]:
    """The modules that a function refers to, and digests of the code of all functions among its references."""
    modules: list[nn.Module] = []
    codes: list[str] = []
    pending, seen = [function], set[int]()
    while pending and len(seen) < _MOST:
        value = pending.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            modules.append(value)
        elif isinstance(value, types.FunctionType):
            codes.append(bytecode(value.__code__))
            pending += _references(value)
        else:
            pending += _parts(value)
    return modules, codes


def _references(function: types.FunctionType) -> Iterable[object]:
    """The objects in a function's closure, default values and global names."""
    if (function.__module__ or "").partition(".")[0] in _LIBRARIES:
        return
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty until it is assigned
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from (function.__globals__[name] for name in names_in(function.__code__) if name in function.__globals__)


def _parts(value: Any) -> Iterable[object]:
    """The objects inside an object that may contain modules; none for modules of Python, classes and libraries."""
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(value)
    if isinstance(value, dict):
        return tuple(value.values())
    if isinstance(value, type | types.ModuleType | Tensor) or type(value).__module__.partition(".")[0] in _LIBRARIES:
        return ()
    called = getattr(type(value), "__call__", None)  # noqa: B004  # its code, not whether it is callable
    return (*vars(value).values(), called) if hasattr(value, "__dict__") else ()


def model_of(value: T) -> T:
    """The model that a function without required arguments returns; any other object itself.

    A function that has optional arguments only may also be one of images: it is itself unless it returns a module or a
    model in the protocol of MAITE.
    """
    if isinstance(value, nn.Module | type) or has_metadata(value) or not callable(value):
        return value
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # of some callables in C
        return value
    positional = [parameter for parameter in parameters if parameter.kind in (_POSITIONAL, _POSITIONAL_ONLY)]
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if any(parameter.kind is not parameter.VAR_KEYWORD for parameter in required):  # also of *args
        return value
    try:
        returned = call_user_code(value)
    except Exception:
        if positional:
            return value
        raise
    is_found = isinstance(returned, nn.Module) or is_model(returned) or not positional
    return cast("T", returned) if is_found else value


def is_model(value: object) -> bool:
    """Whether an object is a model in the protocol of MAITE, and no `torch.nn.Module`."""
    return has_metadata(value) and callable(value) and not isinstance(value, nn.Module)


class MaiteModel(FunctionModel):
    """A model in the protocol of MAITE as a module without gradients.

    The model is called with a list of float32 arrays (C, H, W) in [0, 1], and returns logits or probabilities (C,) of
    each image. Its modules are moved to the device, and are in evaluation mode during an audit. The buffer ``digest``
    identifies its id, its code, and the arrays among its attributes.

    Args:
        model: the model.

    Raises:
        ClasswiseError: if it returns no scores of each image.
    """

    def __init__(self, model: Callable[[Any], Any]) -> None:
        super().__init__(model)
        attributes: dict[str, Any] = getattr(model, "__dict__", {})
        metadata: Any = getattr(model, "metadata")  # noqa: B009  # of the protocol, not of the type
        self.name = str(metadata["id"])
        self.class_names = class_names_of(metadata, f"model {self.name}")
        module = next((name for name, value in attributes.items() if isinstance(value, nn.Module)), "")
        hint = f" (load_model(model, unwrap={module!r}, data=images) evaluates its module)" if module else ""
        self.no_gradient = f"a MAITE model takes and returns arrays{hint}"
        digest = hashlib.sha256(self.digest.numpy().tobytes() + self.name.encode())
        for name, value in sorted(attributes.items()):
            if isinstance(value, np.ndarray) and value.dtype.kind != "O":
                digest.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
        self.digest = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)

    def forward(self, x: Tensor) -> Tensor:
        """The scores (N, C) of images (N, channels, H, W)."""
        scores = as_tensor([*self._outputs(list(x.detach().cpu().numpy()))], f"model {self.name}")
        if scores.ndim != 2 or len(scores) != len(x) or scores.is_complex():
            kind = "complex scores" if scores.is_complex() else "scores"
            raise ClasswiseError(
                f"model {self.name} returns {kind} of shape {tuple(scores.shape)} for {len(x)} images; expected (C,) "
                "for each image"
            )
        return scores.float().to(x.device)

    def _outputs(self, images: list[np.ndarray[Any, Any]]) -> Any:
        found: Any = call_user_code(self._function, images)  # type: ignore[arg-type]  # not a batch of images, but their list
        return found
