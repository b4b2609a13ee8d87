"""The default batch size of a device, and a smaller one for images that are too large for it."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from classwise.attacks.engine import SMALLEST_BATCH
from classwise.core.compute.precision import EXACT
from classwise.models.modes import evaluating, frozen

USUAL_BATCH = 128
"""The default batch size on a CPU, if there are as many images; large images may need a smaller one."""
USUAL_BATCH_ON_A_GPU = 1024
"""The default batch size on a GPU, which smaller batches of small images do not keep busy."""
SMALL_PIXELS = 64 * 64
"""Images of at most this many pixels get the default batch size without a measurement."""
SHARE = 0.5
"""The share of the device's memory that a batch may take."""
OVERHEAD = 1.5
"""Approximate ratio of the memory of a forward and backward pass to that of the tensors saved for backward."""
COPIES = 8
"""Approximate number of tensors of the images' size in an attack: start, iterate, gradient, best, momentum, ..."""

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Fit(NamedTuple):
    """A batch size and a note on its choice.

    Attributes:
        batch_size: images on the device at once.
        note: why it is not the default, or that it may not fit into memory; else empty.
    """

    batch_size: int
    note: str = ""


def usual_batch(device: torch.device, images: int | None) -> int:
    """The default batch size of a device: not much more than the number of images, since batches are padded.

    Args:
        device: where the images are attacked.
        images: number of images of the data; None: unknown.
    """
    least, most = (USUAL_BATCH, USUAL_BATCH_ON_A_GPU) if device.type == "cuda" else (SMALLEST_BATCH, USUAL_BATCH)
    return most if images is None else max(least, min(most, -(-images // SMALLEST_BATCH) * SMALLEST_BATCH))


def fitting_batch(model: nn.Module, x: Tensor, batch_size: int | None = None, *, images: int | None = None) -> Fit:
    """Choose a batch size for which images of one size fit into the device's memory.

    The choice depends on the model, the image size and the total memory of the device, not on its free memory, so it
    is the same in each run on one machine.

    Args:
        model: maps images to logits.
        x: (N, C, H, W), at least one image on the model's device; one forward pass of the first is measured.
        batch_size: the user's choice, which is only checked; None: the default (`usual_batch`), halved until it fits.
        images: number of images of the data; None: unknown.
    """
    usual = usual_batch(x.device, images)
    if x.shape[-2] * x.shape[-1] <= SMALL_PIXELS:
        return Fit(batch_size or usual)
    each = OVERHEAD * saved_bytes(model, x[:1]) + COPIES * 4 * math.prod(x.shape[1:])
    limit = SHARE * memory_of(x.device)
    chosen = batch_size or usual
    while batch_size is None and chosen > 1 and chosen * each > limit:
        chosen //= 2
    height, width = x.shape[-2:]
    need = f"{chosen} images of {height} x {width} pixels need about {chosen * each / 1e9:.1f} GB"
    need += f" of the device's {limit / SHARE / 1e9:.1f} GB"
    if chosen * each > limit:
        advice = (
            "reduce or omit batch_size (--batch-size)"
            if batch_size
            else "use smaller images, or a device with more memory"
        )
        return Fit(chosen, f"batch size {chosen} may not fit: {need}; {advice}")
    if batch_size is None and chosen < usual:
        return Fit(chosen, f"batch size {chosen} instead of {usual}: {need}")
    return Fit(chosen)


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes that a forward pass saves for the gradient with respect to the images, without parameters and buffers."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with torch.inference_mode(False), evaluating(model), frozen(model), torch.enable_grad(), hooks:
        # The output keeps the graph and every saved tensor alive, so that no storage is reused.
        logits = EXACT.forward(model)(x.detach().clone().requires_grad_())
    del logits
    return sum(saved.values())


def memory_of(device: torch.device) -> float:
    """Total memory of the device in bytes; for a CPU at most the limit of the process's control group."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    limits = [str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    limits += [path.read_text().strip() for path in _CGROUP_LIMITS if path.is_file()]
    return float(min(int(text) for text in limits if text.isdecimal()))
