"""Digests of values by their content: equal in each process, independent of memory addresses and of hash seeds."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_LITERALS = (bool, int, float, complex, str, bytes, bytearray, type(None), type(...), type(NotImplemented))
_TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme)
_PROTOCOL = 4
"""The protocol of pickle by which objects are taken apart."""


def digest_of(value: object) -> bytes:
    """SHA-256 of a value: numbers, text, tensors, arrays, collections of these, and objects that pickle accepts.

    Mappings and sets are compared without their order, functions and classes by name.

    Raises:
        TypeError: if an object has no content that can be read, such as an open file or a lock.

    Example:
        >>> from classwise.models.content import digest_of
        >>> digest_of({"step": 3, "names": {"cat", "dog"}}) == digest_of({"names": {"dog", "cat"}, "step": 3})
        True
    """
    try:
        return _Content().digest(value)
    except RecursionError as error:
        raise TypeError(f"a {type(value).__name__} is nested too deeply") from error


class _Content:
    """Digests of nested values; shared objects are read once, and a cycle is a reference to the depth it leads to."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._known: dict[int, tuple[object, bytes]] = {}  # with the objects, so that ids are not reused

    def digest(self, value: Any) -> bytes:
        if isinstance(value, _LITERALS) and type(value).__module__ == "builtins":
            return _joined(type(value).__name__, repr(value).encode())
        if id(value) in self._open:
            return _joined("cycle", str(self._open[id(value)]).encode())
        if id(value) not in self._known:
            self._open[id(value)] = len(self._open)
            try:
                self._known[id(value)] = value, _joined(*self._parts(value))
            finally:
                del self._open[id(value)]
        return self._known[id(value)][1]

    def _parts(self, value: Any) -> Iterator[str | bytes]:
        """A tag of the kind of the value, and the digests of its parts."""
        if isinstance(value, Tensor):
            yield from self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            yield f"array {array.dtype.descr if array.dtype.names else array.dtype.str} {array.shape}"
            yield from self._all(array.ravel().tolist()) if array.dtype.hasobject else [array.tobytes()]
        elif isinstance(value, list | tuple) and type(value).__module__ in ("builtins", "torch"):
            yield type(value).__name__
            yield from self._all(value)
        elif type(value) in (set, frozenset):
            yield type(value).__name__
            yield from sorted(self._all(value))
        elif isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
            yield "mapping"
            yield from sorted(_joined(*self._all(item)) for item in value.items())
        elif isinstance(value, _TORCH_CONSTANTS):
            yield f"{type(value).__name__} {value}"
        elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            yield f"{value.__module__}.{value.__qualname__}"
        elif isinstance(value, nn.Module):
            yield f"module {type(value).__module__}.{type(value).__qualname__}"
            yield self.digest(value.state_dict())
        else:
            yield "object"
            yield from self._all(_reduced(value))

    def _tensor(self, tensor: Tensor) -> Iterator[str | bytes]:
        yield f"tensor {tensor.dtype}" if is_lazy(tensor) else f"tensor {tensor.dtype} {tuple(tensor.shape)}"
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if is_lazy(tensor):
            yield "not initialised"
        elif tensor.is_meta:
            raise TypeError("a tensor on the meta device has no values")
        elif flatten is not None:  # a subclass that consists of other tensors
            names, settings = flatten()
            yield from self._all([type(tensor), settings, *(getattr(tensor, name) for name in names)])
        elif tensor.is_quantized:
            yield from self._all([tensor.int_repr(), tensor.qscheme(), *_scales(tensor)])
        elif tensor.is_nested:
            yield from self._all(tensor.unbind())
        elif tensor.layout is torch.sparse_coo:
            whole = tensor.detach().coalesce()
            yield from self._all([whole.indices(), whole.values()])
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from self._all([str(tensor.layout), tensor.crow_indices(), tensor.col_indices(), tensor.values()])
        elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from self._all([str(tensor.layout), tensor.ccol_indices(), tensor.row_indices(), tensor.values()])
        else:
            dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
            yield bytes(raw_bytes(dense.resolve_conj().resolve_neg()))

    def _all(self, values: Iterable[object]) -> Iterator[bytes]:
        return (self.digest(value) for value in values)


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a dense tensor's values, on any device."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def script_contents(model: nn.Module) -> Iterator[tuple[str, object]]:
    """The weights of TorchScript modules that are not in their state dict, by name.

    These are the packed weights of quantised layers, and the constants of a frozen program, whose state dict is empty.
    """
    frozen = not model.state_dict()
    for name, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            continue
        packed = getattr(module, "_packed_params", None)
        if isinstance(packed, torch.ScriptObject):
            yield f"{name}._packed_params", packed
        elif frozen and module._c._has_method("forward"):
            nodes: Any = module.graph.findAllNodes("prim::Constant")  # type: ignore[attr-defined]  # missing in torch's stubs
            values = [node.output().toIValue() for node in nodes]
            constants = [value for value in values if isinstance(value, Tensor | torch.ScriptObject)]
            if constants:
                yield f"{name}.constants", constants


def _scales(tensor: Tensor) -> list[object]:
    """Scales and zero points of a quantised tensor."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return [tensor.q_scale(), tensor.q_zero_point()]
    return [tensor.q_per_channel_axis(), tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]


def _reduced(value: Any) -> list[object]:
    """What pickle stores of an object: its constructor, arguments, state and elements.

    Raises:
        TypeError: if pickle does not accept it.
    """
    try:
        reduced = value.__reduce_ex__(_PROTOCOL)
    except Exception as error:  # user code, and objects of other libraries, may raise any error
        raise TypeError(f"a {type(value).__name__} has no content that can be compared") from error
    if isinstance(reduced, str):
        return [reduced]
    # The elements of lists and mappings are iterators.
    return [list(part) if isinstance(part, Iterator) else part for part in reduced]


def _joined(*parts: str | bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(content)} ".encode())
        digest.update(content)
    return digest.digest()
