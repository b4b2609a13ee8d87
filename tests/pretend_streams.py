"""Streams, events and CUDA graphs of the pretended GPU.

The operations of a graph are captured and repeated, with the Python values of the capture. As on a GPU, a capture
computes nothing: at its end, the tensors that existed before have their old values. A replay repeats each operation on
the same tensors and writes its results to the tensors of the capture. Waiting for the GPU and copies from the CPU are
refused in a capture.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .pretend_cuda import PretendCuda

_NO_MODES = torch.utils._python_dispatch._disable_current_modes


class Stream:
    """A stream; work is done in the order of its launch, whatever the stream."""

    def __init__(self, *_: object) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        """Nothing to wait for."""
        assert isinstance(other, Stream)


class Event:
    """`torch.cuda.Event` of the pretended device."""

    device: PretendCuda

    def __init__(self, **_: object) -> None:
        self._last: list[tuple[Tensor, Tensor]] = []

    def record(self, *_: object) -> None:
        """Note the last copy under way."""
        self._last = self.device.pending[-1:]

    def synchronize(self) -> None:
        """Complete the copies up to that one; logged as a wait of the thread that launches kernels only."""
        if threading.current_thread() is threading.main_thread():
            self.device.waited("event")
        self.device.arrive(self._last)


class CUDAGraph:
    """The operations of a capture."""

    def __init__(self) -> None:
        self.operations: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []
        self.replays = 0
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # older ones, and their copies
        self._own: set[int] = set()

    def record(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an operation of the capture."""
        arguments = tensors_in((args, kwargs))
        if func._schema.is_mutable or "batch_norm" in func.__name__:  # whose schemas do not mark the statistics
            for argument in arguments:
                key = _key(argument)
                if key not in self._own and key not in self._before:
                    storage: Any = argument.untyped_storage()
                    self._before[key] = storage, storage.clone()
        result = func(*args, **kwargs)
        known = {_key(argument) for argument in arguments}
        self._own |= {_key(tensor) for tensor in tensors_in((result,))} - known
        self.operations.append((func, args, kwargs, result))
        return result

    def end(self) -> None:
        """Undo what was computed."""
        for storage, value in self._before.values():
            storage.copy_(value)
        self._before.clear()

    def replay(self) -> None:
        """Repeat the operations."""
        self.replays += 1
        with torch._C.DisableTorchFunction(), _NO_MODES(), torch.no_grad():
            for func, args, kwargs, captured in self.operations:
                known = {_key(tensor) for tensor in tensors_in((args, kwargs))}
                result = func(*args, **kwargs)
                for old, new in zip(tensors_in((captured,)), tensors_in((result,)), strict=True):
                    if _key(old) not in known:
                        old.copy_(new)


class Graphs:
    """What `torch.cuda` has for graphs, on a pretended GPU.

    Attributes:
        made: all graphs.
        capture: the graph that is being captured, or None.
    """

    def __init__(self, device: PretendCuda) -> None:
        self.made: list[CUDAGraph] = []
        self.capture: CUDAGraph | None = None
        self._device = device

    @contextlib.contextmanager
    def graph(self, graph: CUDAGraph, *, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        """`torch.cuda.graph`."""
        assert isinstance(stream, Stream)
        assert capture_error_mode == "thread_local"
        self._device.synchronise("graph")
        self.made.append(graph)
        self.capture = graph
        try:
            yield
        finally:
            self.capture = None
            with torch._C.DisableTorchFunction(), _NO_MODES(), torch.no_grad():
                graph.end()

    def refuse(self, what: str) -> None:
        """Raise the error of CUDA for what cannot be captured."""
        if self.capture is not None:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")


@contextlib.contextmanager
def used(_: Stream) -> Iterator[None]:
    """`torch.cuda.stream`."""
    yield


NESTED = (tuple, list, dict)


def tensors_in(values: Iterable[object]) -> list[Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, NESTED):
            found += tensors_in(value.values() if isinstance(value, dict) else value)
    return found


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
