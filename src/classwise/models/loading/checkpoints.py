"""Anybody's checkpoint file read as data, never as code, and the state dict found in it."""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from classwise.core import limits
from classwise.core.errors import ClasswiseError
from classwise.core.storage import verify
from classwise.models.weights import METADATA_KEY

AVERAGED = ("state_dict_ema", "model_ema", "ema")
CONTAINERS = (*AVERAGED, "state_dict", "model_state_dict", "net", "model", "rmodel", "last", "best")
"""Where public code keeps the weights, the preferred place first: averaged weights were made to be used."""

_DEEPEST = 8
"""Containers inside each other in a checkpoint; public ones have two."""


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of one state dict, as they lie in the file.

    Attributes:
        path: The file.
        tensors: Name to tensor, on the CPU.
        container: The keys under which the state dict was found, outermost first; empty for a bare one.
        others: The other state dicts beside it, by key.
        metadata: The text that a safetensors file carries.
    """

    path: Path
    tensors: Mapping[str, Tensor]
    container: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """What was read, in words."""
        if not self.container:
            return f"read {self.path}"
        kind = " (averaged weights)" if self.container[-1] in AVERAGED else ""
        others = ", ".join(map(repr, self.others))
        rest = f"; it also holds {others}, which container= would choose" if others else ""
        return f"read {'/'.join(map(repr, self.container))}{kind} of {self.path}{rest}"


def read_state(path: str | os.PathLike[str], *, container: str | None = None) -> Checkpoint:
    """Read a .safetensors, .pt or .pth file and find the state dict in it.

    Args:
        path: The file; what it is shows in its first bytes, not in its name.
        container: The key of the state dict to take; the default is the first of `CONTAINERS` that is there.

    Raises:
        ClasswiseError: if the file is missing or damaged, needs code to be run, or holds no state dict.
    """
    file = Path(path)
    try:
        regular = file.is_file() or not file.exists()
        if regular:
            with file.open("rb") as stream:
                head = stream.read(9)
            size = file.stat().st_size
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise ClasswiseError(f"cannot read the weights {file}: {getattr(error, 'strerror', None) or error}") from error
    if not regular:
        raise ClasswiseError(f"cannot read the weights {file}: not a regular file")
    limits.check_size(size, str(file))
    verify(file)
    # A safetensors file begins with the length of its JSON header, in 8 bytes, and the header itself.
    if file.suffix == ".safetensors" or head[8:] == b"{":
        tensors, metadata = _read_safetensors(file)
        return Checkpoint(file, tensors, metadata=metadata)
    return _find(file, _read_pickle(file), container)


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = dict(opened.metadata() or {})
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118  # it is no mapping
            return tensors, {**metadata, **_own_metadata(metadata)}
    except (SafetensorError, OSError, MemoryError, RuntimeError, TypeError, KeyError) as error:
        raise ClasswiseError(f"{file} is damaged or cut short ({error}); fetch or copy it again") from error


def _own_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """What `save_weights` wrote; nothing in a stranger's file, whatever it holds."""
    try:
        found = json.loads(metadata.get(METADATA_KEY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _read_pickle(file: Path) -> object:
    _check_archive(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old pickle protocols: they are read or refused like the rest
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ClasswiseError(_refusal(file, str(error))) from error
    except Exception as error:  # damaged bytes can break the reader anywhere
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ClasswiseError(f"{file} is damaged or no file of weights ({reason}); fetch or copy it again") from error


def _check_archive(file: Path) -> None:
    """See that the members of a file of ``torch.save`` do not expand beyond the memory; other files have none."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return  # of before torch 1.6, or damaged: torch.load says which
    if len(members) > 2 * limits.TENSORS:
        raise ClasswiseError(f"{file} has {len(members)} members; at most {limits.TENSORS} tensors are read")
    limits.check_size(sum(member.file_size for member in members), str(file), file.stat().st_size)


def _refusal(file: Path, reason: str) -> str:
    wanted = re.search(r"GLOBAL ([\w.]+)|global[: ]+`?([\w.]+\.[\w.]+)", reason)
    if wanted is None:
        return f"{file} is damaged, cut short, or not written by torch.save; fetch it again or save model.state_dict()"
    name = wanted.group(1) or wanted.group(2)
    return (
        f"{file} is a pickle that wants to run code ({name}), so it is refused; "
        "where you trust it, load it yourself and save model.state_dict() alone"
    )


def _find(
    file: Path,
    value: object,
    container: str | None,
    path: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> Checkpoint:
    """Go down the containers until a mapping of names to tensors is reached."""
    if len(path) > _DEEPEST:
        raise ClasswiseError(
            f"{file} has more than {_DEEPEST} containers inside each other; save model.state_dict() alone"
        )
    if container is None and _is_state(value):
        assert isinstance(value, Mapping)
        return Checkpoint(file, dict(value), path, others)
    inside = _containers(value)
    chosen = container or next((key for key in CONTAINERS if key in inside), "")
    if chosen not in inside:
        keys = [repr(str(key)) for key in value][:8] if isinstance(value, Mapping) else [f"a {type(value).__name__}"]
        asked = f"no state dict {container!r}" if container else "no state dict"
        raise ClasswiseError(f"{file} holds {asked}, but {', '.join(keys) or 'nothing'}; save model.state_dict() alone")
    beside = tuple(sorted(key for key in inside if key != chosen))
    return _find(file, inside[chosen], None, (*path, chosen), (*others, *beside))


def _is_state(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(key, str) and isinstance(item, Tensor) for key, item in value.items())
    )


def _containers(value: object) -> dict[str, Any]:
    """The entries of a checkpoint that are a state dict, or hold one."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key): item for key, item in value.items() if _is_state(item) or _has_known(item)}


def _has_known(value: object) -> bool:
    return isinstance(value, Mapping) and any(_is_state(value.get(key)) for key in CONTAINERS)
