"""Copies between the CPU and a GPU for which the CPU does not wait.

A copy from ordinary (pageable) memory waits for the GPU. These go through pinned memory, asynchronously. On a CPU they
are no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device without waiting for it; a tensor that is there already is returned unchanged."""
    if tensor.device.type == "cpu" and device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def all_to_device(content: Any, device: torch.device) -> Any:
    """Copy the tensors in nested mappings, lists and tuples to a device."""
    return _mapped(content, lambda tensor: tensor.to(device))


class HostCopy:
    """A copy on the CPU of nested mappings and sequences with tensors, which is under way.

    Args:
        content: the tensors, mappings, lists and tuples; other values are not copied.
        cloned: whether tensors on the CPU are copied, too, so that all may be modified after this was made.
    """

    def __init__(self, content: Any, *, cloned: bool = False) -> None:
        self._content = _mapped(content, _cloned if cloned else _host_copy)
        self._event = _recorded(_tensors(content))

    def content(self) -> Any:
        """The copy; waits for the work that was queued before it, not for later work."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._content


def to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, waiting for the device once."""
    copied: dict[str, Tensor] = HostCopy(tensors).content()
    return copied


def _host_copy(tensor: Tensor) -> Tensor:
    """The tensor on the CPU; from a GPU, the copy is complete only after an event recorded now."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor.detach(), non_blocking=True)


def _recorded(tensors: Iterable[Tensor]) -> torch.cuda.Event | None:
    """An event after the copies of the tensors on a GPU; None if there is none."""
    device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    if device is None:
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not annotate it
    event.record(torch.cuda.current_stream(device))
    return event


def _cloned(tensor: Tensor) -> Tensor:
    return tensor.detach().clone() if tensor.device.type == "cpu" else _host_copy(tensor)


def _mapped(content: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(content, Tensor):
        return function(content)
    if isinstance(content, Mapping):
        return {key: _mapped(value, function) for key, value in content.items()}
    return type(content)(_mapped(item, function) for item in content) if isinstance(content, list | tuple) else content


def _tensors(content: Any) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, Mapping | list | tuple):
        for item in content.values() if isinstance(content, Mapping) else content:
            yield from _tensors(item)
