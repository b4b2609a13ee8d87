"""CUDA graphs: the work of a function on a GPU, captured once and repeated without its Python code.

While a function is captured, nothing is computed. A replay reads and writes the tensors at the addresses of the
capture, so inputs are copied into tensors that stay. Python values, such as a step size, are those of the capture.
A function that reads a value from the GPU cannot be captured.
"""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Literal, TypeVar

import torch

from classwise.core.errors import ClasswiseError

T = TypeVar("T")

Graphs = Literal["auto", "on", "off"]
"""Whether CUDA graphs are used: wherever possible, always (an error where it is impossible), or never."""

WARM_UP = 3
"""Steps before a capture in its stream, in which libraries are initialised and choose kernels."""
FEWEST_STEPS = 30
"""Steps from which a graph saves more time than its capture takes."""

_WAITS = "called a synchronizing CUDA operation"
"""torch's warning, with `torch.cuda.set_sync_debug_mode`."""


def refusal(reason: str) -> ClasswiseError:
    """The error for ``precision.graphs = on`` where graphs are impossible."""
    return ClasswiseError(f"precision.graphs = on: {reason}; set it to auto or off")


_STREAMS = threading.local()
"""The side streams of a thread by device."""


@contextmanager
def waits_noted() -> Iterator[list[str]]:
    """Context whose result has a text for each operation that waits for the GPU, once the context is left.

    A capture that fails at such an operation leaves torch's memory allocator in the state of a capture, so a function
    is checked before it is captured.
    """
    found: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):
        torch.cuda.set_sync_debug_mode("warn")  # which warns that it is a prototype
    try:
        with warnings.catch_warnings(record=True, action="always") as caught:
            yield found
    finally:
        torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        if _WAITS in str(warning.message):
            found.append("it waits for the GPU")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def first_line(error: BaseException) -> str:
    """The error that made a capture fail, in one line; the end of the capture then fails with another."""
    while "previous error during capture" in str(error) and error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class SideStream:
    """A stream in which a function is run before it is captured, and captured.

    A backward pass runs in the stream of its forward pass. The stream of a capture must not depend on others, so the
    passes before it are in the same stream. A thread has one stream for each GPU, since cuBLAS keeps a workspace (68
    MB on an H200) for each stream that it was used in, until the process ends.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        streams: dict[str, torch.cuda.Stream] = vars(_STREAMS)
        if str(device) not in streams:
            streams[str(device)] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch: not annotated
        self.stream = streams[str(device)]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Context in which kernels are launched in this stream, after earlier work and before later work."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            current.wait_stream(self.stream)


class Captured(Generic[T]):
    """A function captured as a CUDA graph.

    Other threads may use the GPU during the capture.

    Args:
        function: launches kernels only; it must have run before in the stream.
        side: the stream.

    Attributes:
        result: the result of the function; its tensors have values after the first `replay`.
    """

    def __init__(self, function: Callable[[], T], side: SideStream) -> None:
        self._graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(side.device)
        try:
            with torch.cuda.graph(self._graph, stream=side.stream, capture_error_mode="thread_local"):
                self.result = function()
        except BaseException:
            torch.cuda.set_stream(current)  # torch does not restore it where the end of the capture fails, too
            raise

    def replay(self) -> None:
        """Repeat the work in the current stream."""
        self._graph.replay()


class Compared:
    """A number that may only be compared: in a capture, a comparison decides which operations are captured.

    Args:
        value: the number.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: float) -> None:
        self._value = value
        self._comparisons: list[tuple[Callable[[float, float], bool], float, bool]] = []

    def holds(self, value: float) -> bool:
        """Whether all comparisons so far have the same results for another number."""
        return all(compare(value, other) == result for compare, other, result in self._comparisons)

    def _compare(self, compare: Callable[[float, float], bool], other: float) -> bool:
        result = compare(self._value, other)
        self._comparisons.append((compare, other, result))
        return result

    def __lt__(self, other: float) -> bool:
        return self._compare(operator.lt, other)

    def __le__(self, other: float) -> bool:
        return self._compare(operator.le, other)

    def __gt__(self, other: float) -> bool:
        return self._compare(operator.gt, other)

    def __ge__(self, other: float) -> bool:
        return self._compare(operator.ge, other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self._compare(operator.eq, other)
