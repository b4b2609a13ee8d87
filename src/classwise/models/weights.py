"""Weights on the disk, written by us: safetensors that say which model they belong to; and their hash."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.core.storage import write_bytes

SCHEMA_VERSION = 1
"""The layout of the metadata."""
METADATA_KEY = "classwise"
"""The one key of the metadata."""


def save_weights(
    path: str | os.PathLike[str],
    model: nn.Module,
    metadata: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    *,
    checksum: bool = False,
) -> None:
    """Write the parameters and buffers of a model to a safetensors file, whole or not at all.

    The file's metadata is one JSON object under the key ``classwise``: safetensors writes several keys in a random
    order, and equal runs must leave equal files. Its values are strings: text as it is, everything else as JSON.
    ``model`` is the model's spec (`build_model` leaves it on the model), by which `load_model` builds the model again.

    Args:
        path: The file to write.
        model: The model; it is not moved or changed.
        metadata: What else the file should say, or a ``model`` spec of its own.
        dtype: Stores floating-point tensors in this precision, such as ``torch.float16``; None keeps each as it is.
        checksum: Append the file's digest to the folder's ``checksums.txt``.

    Raises:
        ClasswiseError: if the disk is full, the folder cannot be written, or a number is too large for the precision.
    """
    spec = {"model": model.spec} if isinstance(getattr(model, "spec", None), Mapping) else {}
    about = {"schema_version": SCHEMA_VERSION, **spec, **(metadata or {})}
    text = {key: value if isinstance(value, str) else json.dumps(value, default=list) for key, value in about.items()}
    tensors = {name: _stored(name, tensor, dtype) for name, tensor in model.state_dict().items()}
    content = save(tensors, {METADATA_KEY: json.dumps(text, sort_keys=True)})
    write_bytes(path, content, checksum=checksum)


def fingerprint(model: nn.Module) -> str:
    """SHA-256, in hex, of every parameter and buffer with its name, type and shape; the device plays no part."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


def _stored(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy that owns its memory (the format refuses shared ones), in row-major order."""
    kept = tensor.detach().cpu()
    if dtype is not None and kept.is_floating_point():
        limit = torch.finfo(dtype).max
        if bool((kept.abs() > limit).any()):
            raise ClasswiseError(f"{name} holds {float(kept.abs().max()):.3g}, more than {dtype} can ({limit:.5g})")
        kept = kept.to(dtype)
    return kept.clone(memory_format=torch.contiguous_format)
