"""A pretended GPU for machines without one: CPU tensors that report ``cuda:0``, and a log of what a GPU would do.

Tensors are CPU tensors throughout, so their values are those of the CPU. Their device is that of their storage, which
views share. A mixture of devices raises `DeviceMismatchError` where CUDA raises an error. The log has each
synchronisation with its place in the package, and counts kernel launches, one for each operation that computes. Results
copied with ``non_blocking=True`` arrive when an event recorded after them is awaited, not before.

`torch._subclasses.FakeTensor` is no substitute: a build without CUDA cannot make its ``cuda`` tensors, and it has no
values, on which the control flow of attacks depends.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from classwise.core.compute import compilation

from .pretend_streams import CUDAGraph, Event, Graphs, Stream, tensors_in, used


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")

SYNCHRONISING = _names(
    "_local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive unique_dim_consecutive bincount "
    "equal repeat_interleave histc"
)
"""Operations whose result, or its shape, the host reads."""
WITHOUT_SCALARS = _names(
    "index_select gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add index_add_ "
    "index_copy index_copy_ index_fill index_fill_ take_along_dim cat stack searchsorted bucketize"
)
"""Operations that do not even accept a CPU tensor of no dimension with tensors on a GPU."""
WITHOUT_KERNEL = _names(
    "view _unsafe_view expand permute transpose t slice select unsqueeze squeeze detach alias unbind split "
    "split_with_sizes as_strided _reshape_alias empty empty_like empty_strided new_empty new_empty_strided lift_fresh "
    "is_same_size diagonal chunk unfold detach_ squeeze_ unsqueeze_ view_as_real _local_scalar_dense"
)
"""Operations without a kernel: views and allocations."""
NOT_DETERMINISTIC = _names(
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward grid_sampler_2d_backward "
    "upsample_linear1d_backward upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward "
    "_upsample_bicubic2d_aa_backward reflection_pad2d_backward replication_pad2d_backward kthvalue histc cumsum"
)
"""Operations that CUDA refuses with `torch.use_deterministic_algorithms`, for floating-point numbers."""
PLACING = _names("device pin_memory generator")
"""Keyword arguments of functions that decide where the result is, or read from where random numbers come."""
SPECIAL = _names("__get__ to cpu cuda pin_memory is_pinned numpy __array__ tolist __deepcopy__ get_device")
"""Functions that depend on the device without such an argument."""
CONVOLUTIONS = _names("convolution convolution_backward convolution_overrideable cudnn_convolution")
PRODUCTS = _names("mm addmm bmm baddbmm addmv mv dot matmul linear")


class DeviceMismatchError(AssertionError):
    """Tensors of different devices in one operation. Not a `RuntimeError`, which the package may handle."""


class Synchronisation(NamedTuple):
    """A wait of the host for the device.

    Attributes:
        what: the operation.
        where: the places in the package, innermost first, such as ``attacks/engine/queue.py:150 run``.
    """

    what: str
    where: str


class PretendCuda:
    """Context in which ``cuda`` is a device.

    Attributes:
        synchronisations: in order.
        launches: number of kernel launches by operation.
        uploads: sizes in bytes of the copies to the device.
        graphs: the CUDA graphs.
        in_tf32: the places of float32 convolutions and matrix products that a GPU computes in TF32.

    Args:
        rounds: whether these are computed from numbers rounded to TF32.
    """

    def __init__(self, *, rounds: bool = False) -> None:
        self.rounds = rounds
        self.synchronisations: list[Synchronisation] = []
        self.launches: Counter[str] = Counter()
        self.uploads: list[int] = []
        self.in_tf32: list[str] = []
        self.pending: list[tuple[Tensor, Tensor]] = []  # destination and value of copies under way
        self.graphs = Graphs(self)
        self._debug_mode: int | str = 0
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> PretendCuda:
        properties = SimpleNamespace(total_memory=1 << 34, name="pretended")
        event = type("Event", (Event,), {"device": self})
        generator = torch.Generator()
        cuda = {
            "Event": event,
            "Stream": Stream,
            "stream": used,
            "set_stream": lambda *_: None,
            "current_stream": Stream,
            "CUDAGraph": CUDAGraph,
            "graph": self.graphs.graph,
            "current_device": lambda: 0,
            "is_current_stream_capturing": lambda: self.graphs.capture is not None,
            "default_generators": (generator,),
            "get_device_capability": lambda *_: (8, 0),
            "get_device_name": lambda *_: "pretended",
            "get_device_properties": lambda *_: properties,
            "get_rng_state": lambda *_: generator.get_state(),
            "set_rng_state": lambda state, *_: generator.set_state(state),
            "synchronize": lambda *_: self.synchronise("synchronize"),
            "get_sync_debug_mode": lambda: self._debug_mode,
            "set_sync_debug_mode": self._set_debug_mode,
        }
        for name, value in cuda.items():
            self._stack.enter_context(mock.patch.object(torch.cuda, name, value))
        # Its times are those of a CPU, from which compilation would seem worthwhile; a test sets others.
        self._stack.enter_context(mock.patch.object(compilation, "_seconds", return_value=0.0))
        self._stack.enter_context(mock.patch.object(torch, "autocast", _Autocast))
        self._stack.enter_context(_Kernels(self))
        self._stack.enter_context(_Functions(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counted]:
        """Context whose result has the synchronisations and launches within it, once it is left."""
        before, launches, result = len(self.synchronisations), self.launches.total(), Counted()
        yield result
        result.synchronisations = self.synchronisations[before:]
        result.launches = self.launches.total() - launches

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is on the GPU."""
        return tensor in _ON_DEVICE

    def mark(self, result: object, device: torch.device) -> None:
        """Set the device of the tensors in a result."""
        _ON_DEVICE.set(tensors_in((result,)), member=device.type == "cuda")

    def pin(self, tensor: Tensor) -> Tensor:
        """Mark a CPU tensor as pinned."""
        _PINNED.set((tensor,), member=True)
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a CPU tensor is pinned."""
        return tensor in _PINNED

    def synchronise(self, what: str) -> None:
        """Log a synchronisation, by the thread that launches kernels."""
        self.graphs.refuse(what)
        if self._debug_mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=2)
        self.waited(what)
        self.arrive(self.pending[-1:])

    def _set_debug_mode(self, mode: int | str) -> None:
        self._debug_mode = mode

    def waited(self, what: str) -> None:
        """Log a wait of the host."""
        self.synchronisations.append(Synchronisation(what, _place()))

    def arrive(self, last: list[tuple[Tensor, Tensor]]) -> None:
        """Complete the copies under way up to the last one, unless it has been completed."""
        with self._lock:
            places = [place for place, copy in enumerate(self.pending) if any(copy is entry for entry in last)]
            arriving = self.pending[: places[0] + 1] if places else []
            no_modes = torch.utils._python_dispatch._disable_current_modes()
            with torch._C.DisableTorchFunction(), no_modes, torch.no_grad():
                for destination, value in arriving:
                    destination.copy_(value)
            del self.pending[: len(arriving)]

    def copied(self, source: Tensor, target: torch.device, what: str, *, non_blocking: bool) -> None:
        """Log the copy of a tensor to another device."""
        self.graphs.refuse(what)
        if target.type == "cuda":
            self.uploads.append(source.nbytes)
        asynchronous = non_blocking and (target.type == "cpu" or self.is_pinned(source))
        if source.numel() and not asynchronous:
            self.synchronise(f"{what} {tuple(source.shape)} {'to' if target.type == 'cuda' else 'from'} the device")


class Counted:
    """What happened in a context of `PretendCuda.counted`."""

    synchronisations: list[Synchronisation]
    launches: int


class _Storages:
    """A set of storages; a tensor is a member with its storage."""

    def __init__(self) -> None:
        self._members: dict[int, StorageWeakRef] = {}  # a weak reference keeps the address from being used again
        self._limit = 1024

    def __contains__(self, tensor: Tensor) -> bool:
        return self.members((tensor,))[0]

    def members(self, tensors: Iterable[Tensor]) -> list[bool]:
        """Whether each tensor is a member."""
        with torch._C.DisableTorchFunction():
            return [_has_storage(tensor) and tensor.untyped_storage()._cdata in self._members for tensor in tensors]

    def set(self, tensors: Iterable[Tensor], *, member: bool) -> None:
        with torch._C.DisableTorchFunction():
            for storage in (tensor.untyped_storage() for tensor in tensors if _has_storage(tensor)):
                if not member:
                    self._members.pop(storage._cdata, None)
                elif storage._cdata not in self._members:
                    self._members[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if len(self._members) > self._limit:
            self._members = {key: ref for key, ref in self._members.items() if not ref.expired()}  # type: ignore[no-untyped-call]
            self._limit = max(1024, 2 * len(self._members))


# Shared by all contexts, since the package caches constants on the device.
_ON_DEVICE, _PINNED = _Storages(), _Storages()


class _Functions(TorchFunctionMode):
    """Calls of torch's Python functions: devices as arguments and as properties, and copies between devices."""

    def __init__(self, device: PretendCuda) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        device, kwargs, name = self._device, dict(kwargs or {}), getattr(func, "__name__", "")
        if name not in SPECIAL and PLACING.isdisjoint(kwargs):
            return func(*args, **kwargs)
        if name == "__get__":
            return self._property(getattr(getattr(func, "__self__", None), "__name__", ""), func, args)
        if name in ("to", "cpu", "cuda") and isinstance(args[0], Tensor):
            return self._moved(name, func, args, kwargs)
        if name in ("pin_memory", "is_pinned") and isinstance(args[0], Tensor):
            return device.pin(args[0].clone()) if name == "pin_memory" else device.is_pinned(args[0])
        if name in ("numpy", "__array__") and device.holds(args[0]):
            raise DeviceMismatchError(f"{name}() of a tensor on the device, at {_place()}")
        if name == "tolist" and device.holds(args[0]):
            device.synchronise(name)
        if name == "__deepcopy__":
            result = func(*args, **kwargs)
            device.mark(result, CUDA if device.holds(args[0]) else CPU)
            return result
        if name == "get_device":
            return 0 if device.holds(args[0]) else -1
        target = kwargs.pop("device", None)
        target = None if target is None else torch.device(target)
        pinned = kwargs.pop("pin_memory", False)
        tensors = tensors_in((args, kwargs))
        anywhere = (target is not None and target.type == "cuda") or any(map(device.holds, tensors))
        if kwargs.get("generator") is not None and anywhere:
            raise DeviceMismatchError(f"{name} on the device with a generator of the CPU, at {_place()}")
        result = func(*args, **kwargs)
        if target is not None:
            if (
                name in ("tensor", "as_tensor", "asarray")
                and target.type == "cuda"
                and not any(map(device.holds, tensors))
            ):
                device.synchronise(f"{name} of host values")
            fresh = result.clone() if any(result is tensor for tensor in tensors) else result
            device.mark(fresh, target)
            result = fresh
        return device.pin(result) if pinned else result

    def _property(self, name: str, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        known = {"device": CUDA, "is_cuda": True, "is_cpu": False}
        on_device = name in known and isinstance(args[0], Tensor) and self._device.holds(args[0])
        return known[name] if on_device else func(*args)

    def _moved(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        device, tensor = self._device, args[0]
        target: torch.device | None = CPU if name == "cpu" else CUDA
        if name == "to":
            target, kwargs = self._parsed(*args[1:], **kwargs)
        non_blocking = bool(kwargs.pop("non_blocking", False))
        converted: Tensor = func(tensor, **kwargs) if name == "to" else tensor
        if target is None or (target.type == "cuda") == device.holds(tensor):
            return converted
        device.copied(tensor, target, name, non_blocking=non_blocking)
        result = converted.clone() if converted is tensor else converted
        device.mark(result, target)
        if target.type == "cpu" and non_blocking:
            device.pending.append((result, result.detach().clone()))
            result.detach().zero_()
        return result

    def _parsed(self, *args: Any, **kwargs: Any) -> tuple[torch.device | None, dict[str, Any]]:
        """The device and the other arguments of ``Tensor.to``, which may be given in three orders."""
        first = args[0] if args else None
        if isinstance(first, Tensor):
            names, args = ("dtype", "non_blocking", "copy"), (first.dtype, *args[1:])
            kwargs["device"] = CUDA if self._device.holds(first) else CPU
        elif isinstance(first, torch.dtype):
            names = ("dtype", "non_blocking", "copy")
        else:
            names = ("device", "dtype", "non_blocking", "copy")  # type: ignore[assignment]
        kwargs |= dict(zip(names, args, strict=False))
        target = kwargs.pop("device", None)
        kwargs = {key: value for key, value in kwargs.items() if value is not None}
        return None if target is None else torch.device(target), kwargs


class _Kernels(TorchDispatchMode):
    """Operations of torch, those of the backward pass included: launches, synchronisations and mixed devices."""

    def __init__(self, device: PretendCuda) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        device, kwargs, name = self._device, kwargs or {}, func.overloadpacket.__name__
        tensors = tensors_in((args, kwargs))
        here = _ON_DEVICE.members(tensors)
        capture = device.graphs.capture
        run = func if capture is None else functools.partial(capture.record, func)
        if not any(here):
            return func(*args, **kwargs) if tensors else run(*args, **kwargs)
        if name == "copy_" and not all(here):
            return self._copied(func, args, kwargs)
        refused = name in NOT_DETERMINISTIC and torch.are_deterministic_algorithms_enabled()
        if refused and any(tensor.is_floating_point() for tensor in tensors):
            raise RuntimeError(f"{name.strip('_')}_cuda does not have a deterministic implementation, but you set")
        self._check(name, args, tensors, here)
        if name not in WITHOUT_KERNEL:
            device.launches[name] += 1
        in_tf32 = (name in CONVOLUTIONS and convolves_in_tf32()) or (name in PRODUCTS and multiplies_in_tf32())
        if in_tf32 and any(tensor.dtype == torch.float32 for tensor in tensors):
            device.in_tf32.append(_place())
            if device.rounds:
                args = tree_map(_rounded, args)
        result = run(*args, **kwargs)
        device.mark(result, CUDA)
        return result

    def _copied(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device, (destination, source) = self._device, args[:2]
        non_blocking = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
        device.copied(source, CUDA if device.holds(destination) else CPU, "copy_", non_blocking=non_blocking)
        if not (non_blocking and device.holds(source)):
            return func(*args, **kwargs)
        if not device.is_pinned(destination):
            raise DeviceMismatchError(f"copy_(non_blocking=True) into memory that is not pinned, at {_place()}")
        device.pending.append((destination, source.clone()))
        return destination

    def _check(self, name: str, args: tuple[Any, ...], tensors: list[Tensor], here: list[bool]) -> None:
        """Log a synchronisation, or raise an error for mixed devices."""
        device = self._device
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [argument for argument in args[1] if argument is not None]
            fills = name != "index" and args[2].numel() == 1 and not device.holds(args[2])  # a mask then needs no index
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices) and not fills:
                device.synchronise(f"{name} with a mask")
            if device.holds(args[0]):
                for index in indices:
                    if not device.holds(index):
                        device.synchronise(f"{name} with an index on the CPU")
                tensors = [args[0], *args[2:3]]
                here = [device.holds(tensor) for tensor in tensors if isinstance(tensor, Tensor)]
                tensors = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
        elif name in SYNCHRONISING:
            device.synchronise(name)
        if all(here):
            return
        strangers = [tensor for tensor, resident in zip(tensors, here, strict=True) if not resident]
        if any(stranger.ndim or name in WITHOUT_SCALARS for stranger in strangers):
            shapes = [tuple(stranger.shape) for stranger in strangers]
            raise DeviceMismatchError(f"{name}: CPU tensors {shapes} with others on the device, at {_place()}")


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu" if device_type == "cuda" else device_type, *args, **kwargs)


def _rounded(value: Any) -> Any:
    """A tensor rounded to the 10 bits of mantissa of TF32."""
    if not isinstance(value, Tensor) or value.dtype != torch.float32:
        return value
    return ((value.view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided


def convolves_in_tf32() -> bool:
    """Whether torch would compute float32 convolutions in TF32 on a GPU."""
    return _in_tf32(torch.backends.cudnn, getattr(torch.backends.cudnn, "conv", None))


def multiplies_in_tf32() -> bool:
    """Whether torch would compute float32 matrix products in TF32 on a GPU."""
    return _in_tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul)


def _in_tf32(older: Any, newer: Any) -> bool:
    precision = getattr(newer, "fp32_precision", None)  # since torch 2.9
    return bool(older.allow_tf32) if precision is None else precision == "tf32"


def _place() -> str:
    """The innermost places in the package, such as ``attacks/engine/queue.py:150 run``."""
    places: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(places) < 16:
        _, package, file = frame.f_code.co_filename.rpartition("/src/classwise/")
        if package:
            places.append(f"{file}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(places) or "the test"
