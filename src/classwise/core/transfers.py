"""Copies between the CPU and a GPU for which the CPU does not wait.

A copy from ordinary (pageable) memory waits for the GPU. These go through pinned memory, asynchronously. On a CPU they
are no copies.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device without waiting for it; a tensor that is there already is returned unchanged."""
    if tensor.device.type == "cpu" and device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Readback:
    """A copy of tensors to the CPU that is under way.

    Args:
        tensors: tensors by name, on one device.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._values = {name: _host_copy(tensor) for name, tensor in tensors.items()}
        self._event: torch.cuda.Event | None = None
        device = next((tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"), None)
        if device is not None:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not annotate it
            self._event.record(torch.cuda.current_stream(device))

    def values(self) -> dict[str, Tensor]:
        """The tensors on the CPU; waits for the work that was queued before the copy, not for later work."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._values


def to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, waiting for the device once."""
    return Readback(tensors).values()


def _host_copy(tensor: Tensor) -> Tensor:
    """The tensor on the CPU; from a GPU, the copy is complete only after an event recorded now."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor.detach(), non_blocking=True)
