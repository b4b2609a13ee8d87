"""Saving of weights as safetensors with the model's spec as metadata, and fingerprints of weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, TypeGuard

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from classwise.core.errors import ClasswiseError
from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.core.files.storage import write_bytes
from classwise.core.settings.code_identity import identity
from classwise.models.content import digest_of, raw_bytes, script_contents

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
    attribute ``spec`` that `build_model` sets on the model; `load_model` rebuilds the model from it. For a network of
    the user, the entry ``code`` has the SHA-256 of its Python files; `load_model` logs a warning if they have changed.

    Args:
        path: The file to write.
        model: The model; it is not moved or modified.
        metadata: Further entries of the metadata; an entry ``model`` replaces the model's spec.
        dtype: Precision in which floating-point tensors are stored, such as ``torch.float16``; None: unchanged.
        checksum: Append the file's digest to the folder's ``checksums.txt``.
        tensors: A copy of the model's state dict to write; None: the state dict now.

    Raises:
        ClasswiseError: if the file cannot be written, an entry of the state dict is not a dense tensor, or a value is
            out of the range of ``dtype``.
    """
    spec = {"model": model.spec} if isinstance(getattr(model, "spec", None), Mapping) else {}
    code = identity({"model": model})["model"] if spec else {}
    entries = {"schema_version": SCHEMA_VERSIONS["weights"], **spec, **({"code": code} if code else {})}
    entries |= metadata or {}
    text = {key: value if isinstance(value, str) else json.dumps(value, default=list) for key, value in entries.items()}
    tensors = model.state_dict() if tensors is None else tensors
    check_storable(tensors)
    stored = {name: _stored(name, tensor, dtype) for name, tensor in tensors.items()}
    content = save(stored, {METADATA_KEY: json.dumps(text, sort_keys=True)})
    write_bytes(path, content, checksum=checksum)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 (hexadecimal) of the names, data types, shapes and values of the state dict, on any device.

    Entries that are not dense tensors, such as packed weights of quantised layers and extra state of any type, and
    weights of TorchScript modules outside of their state dict are hashed by content (`classwise.models.content`).

    Raises:
        ClasswiseError: if an entry has no content that can be compared.
    """
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items(), key=itemgetter(0)):
        if is_dense(value):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(raw_bytes(value))
        else:
            digest.update(f"{name} {_hex(name, value)}\n".encode())
    for name, value in script_contents(model):
        digest.update(f"{name} {_hex(name, value)}\n".encode())
    return digest.hexdigest()


def check_storable(tensors: Mapping[str, object]) -> None:
    """Check that a safetensors file can hold a state dict.

    Raises:
        ClasswiseError: if an entry is not a dense tensor.
    """
    for name, value in tensors.items():
        if not is_dense(value):
            kind = f"tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
            raise ClasswiseError(
                f"state dict entry {name!r} is a {kind}; weights are saved as dense tensors (safetensors); save this "
                "model with torch.save"
            )


def _hex(name: str, value: object) -> str:
    try:
        return digest_of(value).hex()
    except TypeError as error:
        raise ClasswiseError(
            f"state dict entry {name!r}: {error}; return numbers, text, tensors or collections of these"
        ) from error


def is_dense(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor whose elements are in memory one by one."""
    if not isinstance(value, Tensor) or is_lazy(value) or hasattr(value, "__tensor_flatten__"):
        return False
    is_view = value.is_conj() or value.is_neg()  # whose bytes are not those of its values
    return value.layout is torch.strided and not (value.is_quantized or value.is_nested or value.is_meta or is_view)


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
