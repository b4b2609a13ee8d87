"""The batch that fits into memory, chosen before an audit begins."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from classwise.models.modes import evaluating, frozen

USUAL_BATCH = 128
"""Images on the device at once, unless they are so large that fewer must do."""
SMALL_PIXELS = 64 * 64
"""Images of up to so many pixels always get the usual batch: nothing is measured."""
SHARE = 0.5
"""The share of the device's memory that a batch may take."""
OVERHEAD = 1.5
"""A pass with its gradient takes about so many times the tensors that it saves for the backward pass."""
COPIES = 8
"""An attack holds about so many tensors of the size of its images: start, iterate, gradient, best, momentum, ..."""

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Fit(NamedTuple):
    """A batch, and what a user should know of its choice.

    Attributes:
        batch_size: images on the device at once.
        note: why it is not the usual one, or that it may not fit; else empty.
    """

    batch_size: int
    note: str = ""


def fitting_batch(model: nn.Module, x: Tensor, batch_size: int | None = None) -> Fit:
    """Choose how many images of some size fit into the device's memory together.

    The choice depends on the model, the size of the images and the memory that the device has in all, not on what is
    free at the moment, so it is the same each time on one machine.

    Args:
        model: returns logits.
        x: (N, C, H, W), one image or more on the model's device; the first one is passed once, with its gradient.
        batch_size: given by the user, who then only gets a warning; None: the usual batch, halved until it fits.
    """
    if x.shape[-2] * x.shape[-1] <= SMALL_PIXELS:
        return Fit(batch_size or USUAL_BATCH)
    each = OVERHEAD * saved_bytes(model, x[:1]) + COPIES * 4 * math.prod(x.shape[1:])
    limit = SHARE * memory_of(x.device)
    chosen = batch_size or USUAL_BATCH
    while batch_size is None and chosen > 1 and chosen * each > limit:
        chosen //= 2
    height, width = x.shape[-2:]
    need = f"{chosen} images of {height} x {width} pixels need about {chosen * each / 1e9:.1f} GB"
    need += f" of the device's {limit / SHARE / 1e9:.1f} GB"
    if chosen * each > limit:
        advice = "give a smaller batch, or none" if batch_size else "use smaller images, or a device with more memory"
        return Fit(chosen, f"batch {chosen} may not fit: {need}; {advice}")
    if batch_size is None and chosen < USUAL_BATCH:
        return Fit(chosen, f"batch {chosen} in place of {USUAL_BATCH}: {need}")
    return Fit(chosen)


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes that a forward pass of some images saves for the gradient with respect to them; parameters do not count."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with torch.inference_mode(False), evaluating(model), frozen(model), torch.enable_grad(), hooks:
        # The output holds the graph, and with it every saved tensor, so that no storage is used twice.
        logits = model(x.detach().clone().requires_grad_().clone())  # not a leaf: a model may write into its input
    del logits
    return sum(saved.values())


def memory_of(device: torch.device) -> float:
    """Bytes of memory that the device has in all; of a CPU no more than the control group of the process may use."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    limits = [str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    limits += [path.read_text().strip() for path in _CGROUP_LIMITS if path.is_file()]
    return float(min(int(text) for text in limits if text.isdecimal()))
