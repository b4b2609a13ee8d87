"""Saving of weights as safetensors with the model's spec as metadata, and fingerprints of weights."""

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
"""Version of the metadata schema."""
METADATA_KEY = "classwise"
"""The key of the safetensors metadata under which all of it is stored."""


def save_weights(
    path: str | os.PathLike[str],
    model: nn.Module,
    metadata: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    *,
    checksum: bool = False,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the state dict of a model to a safetensors file, atomically.

    The metadata is one JSON object under the key ``classwise``, because safetensors writes several keys in random order
    and equal runs must give equal files. Its values are strings, or JSON for other types. The entry ``model`` is the
    attribute ``spec`` that `build_model` sets on the model; `load_model` rebuilds the model from it.

    Args:
        path: The file to write.
        model: The model; it is not moved or modified.
        metadata: Further entries of the metadata; an entry ``model`` replaces the model's spec.
        dtype: Precision in which floating-point tensors are stored, such as ``torch.float16``; None: unchanged.
        checksum: Append the file's digest to the folder's ``checksums.txt``.
        tensors: A copy of the model's state dict to write; None: the state dict now.

    Raises:
        ClasswiseError: if the file cannot be written, or a value is out of the range of ``dtype``.
    """
    spec = {"model": model.spec} if isinstance(getattr(model, "spec", None), Mapping) else {}
    entries = {"schema_version": SCHEMA_VERSION, **spec, **(metadata or {})}
    text = {key: value if isinstance(value, str) else json.dumps(value, default=list) for key, value in entries.items()}
    tensors = model.state_dict() if tensors is None else tensors
    stored = {name: _stored(name, tensor, dtype) for name, tensor in tensors.items()}
    content = save(stored, {METADATA_KEY: json.dumps(text, sort_keys=True)})
    write_bytes(path, content, checksum=checksum)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 (hexadecimal) of the names, data types, shapes and values of the state dict, on any device."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


def _stored(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A contiguous copy with its own memory, since safetensors does not accept shared tensors."""
    stored = tensor.detach().cpu()
    if dtype is not None and stored.is_floating_point():
        limit = torch.finfo(dtype).max
        if bool((stored.abs() > limit).any()):
            largest = float(stored.abs().max())
            raise ClasswiseError(f"{name}: value {largest:.3g} is out of the range of {dtype} (at most {limit:.5g})")
        stored = stored.to(dtype)
    return stored.clone(memory_format=torch.contiguous_format)
