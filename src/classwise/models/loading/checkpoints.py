"""Safe reading of checkpoint files: the state dict of a file, without executing any code from it."""

from __future__ import annotations

import collections
import json
import os
import pickle
import pickletools
import re
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from classwise.core.errors import ClasswiseError, did_you_mean, quoted, unknown
from classwise.core.files.storage import verify
from classwise.core.settings import limits
from classwise.core.settings.thread_warnings import warnings_filtered
from classwise.models.weights import METADATA_KEY

AVERAGED = ("state_dict_ema", "model_ema", "ema", "ema_state_dict", "ema_state", "params_ema")
STATE_DICT_KEYS = (
    *(*AVERAGED, "state_dict", "model_state_dict", "net", "model", "rmodel", "last", "best"),
    *("model_state", "network", "network_weights", "module", "weights", "params"),
)
"""Keys of the state dict in public checkpoints, in order of preference: averaged weights come first."""

_EXPORTED = "serialized_exported_program.json"
"""A member of the archives of torch.export before torch 2.8."""
_NOT_WEIGHTS = ("_extra_state", "_packed_params", "dtype")
"""The last parts of the names of entries that need not be tensors: of `get_extra_state`, and of quantised layers."""
_MAX_DEPTH = 8
"""Maximum nesting of dictionaries in a checkpoint; public ones have two levels."""


@dataclass(frozen=True)
class Checkpoint:
    """A state dict as stored in a file.

    Attributes:
        path: The file.
        tensors: Name to tensor, on the CPU.
        keys: The keys under which the state dict is stored, outermost first; empty if it is the whole file.
        other_keys: The keys of other state dicts in the same file.
        metadata: The metadata of a safetensors file.
    """

    path: Path
    tensors: Mapping[str, Tensor]
    keys: tuple[str, ...] = ()
    other_keys: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def epoch(self) -> int | None:
        """The epoch, from 1, after which a training of classwise saved the weights; None for other files."""
        text = self.metadata.get("epoch", "") if METADATA_KEY in self.metadata else ""
        return int(text) + 1 if text.isascii() and text.isdecimal() and len(text) < 10 else None

    def describe(self) -> str:
        """A note on the file and the state dict that was read."""
        if not self.keys:
            return f"read {self.path}"
        kind = " (averaged weights)" if self.keys[-1] in AVERAGED else ""
        others = ", ".join(map(repr, self.other_keys))
        rest = f"; other state dicts, selected by --model-set state_dict_key=KEY: {others}" if others else ""
        return f"read {'/'.join(map(repr, self.keys))}{kind} of {self.path}{rest}"


def read_state(path: str | os.PathLike[str], *, state_dict_key: str | None = None) -> Checkpoint:
    """Read the state dict of a .safetensors, .pt or .pth file.

    Args:
        path: The file; its format is recognised by its first bytes.
        state_dict_key: The key of the state dict in the file; by default the first of `STATE_DICT_KEYS` in the file,
            else the only other key with a dictionary of tensors.

    Raises:
        ClasswiseError: if the file is missing or damaged, requires code execution, has no state dict, or several ones
            under other keys than `STATE_DICT_KEYS`.
    """
    file = Path(path)
    try:
        regular = file.is_file() or not file.exists()
        if regular:
            with file.open("rb") as stream:
                head = stream.read(9)
            size = file.stat().st_size
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ClasswiseError(f"cannot read the weights {file}: {reason}{did_you_mean(file)}") from error
    if not regular:
        raise ClasswiseError(f"cannot read the weights {file}: not a regular file")
    limits.check_size(size, str(file))
    if file.suffix == ".onnx":
        raise ClasswiseError(
            f"{file} is an ONNX model, not weights; give it as the model: classwise audit {quoted(file)}"
        )
    verify(file)
    # A safetensors file begins with the length of its JSON header, in 8 bytes, and the header itself.
    if file.suffix == ".safetensors" or head[8:] == b"{":
        if state_dict_key is not None:
            raise _is_one_state(file, state_dict_key)
        tensors, metadata = _read_safetensors(file)
        return Checkpoint(file, tensors, metadata=metadata)
    return _find(file, _read_pickle(file), state_dict_key)


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = dict(opened.metadata() or {})
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118  # it is no mapping
            return tensors, {**metadata, **_own_metadata(metadata)}
    except (SafetensorError, OSError, MemoryError, RuntimeError, TypeError, KeyError) as error:
        raise ClasswiseError(f"{file} is damaged or truncated ({error}); download or copy it again") from error


def _own_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata written by `save_weights`; empty for files of other programs."""
    try:
        entries = json.loads(metadata.get(METADATA_KEY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return {key: str(value) for key, value in entries.items()} if isinstance(entries, dict) else {}


class _Value:
    """In place of a value beside the weights, which is not needed: no code of its class is called."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class _Dictionary:
    """In place of a dictionary of another class, which may contain weights."""

    def __new__(cls, *_: object) -> Any:
        return collections.OrderedDict()


class _List:
    """In place of a sequence of another class."""

    def __new__(cls, *_: object) -> Any:
        return []


_PLAIN_DATA: dict[type, dict[str, str]] = {
    _Value: {
        "argparse": "Namespace",
        "builtins": "Ellipsis NotImplemented bool dict float frozenset int list range slice str tuple",
        "collections": "ChainMap UserDict UserList UserString",
        "datetime": "date datetime time timedelta timezone",
        "decimal": "Decimal",
        "fractions": "Fraction",
        "numpy": "dtype ndarray",
        "numpy._core.multiarray": "_reconstruct scalar",
        "numpy.core.multiarray": "_reconstruct scalar",
        "pathlib": "PosixPath PurePosixPath PureWindowsPath WindowsPath",
        "pathlib._local": "PosixPath PurePosixPath PureWindowsPath WindowsPath",
        "torch.torch_version": "TorchVersion",
        "types": "SimpleNamespace",
        "uuid": "SafeUUID UUID",
        "zoneinfo": "ZoneInfo._unpickle",
    },
    _Dictionary: {"collections": "defaultdict"},
    _List: {"collections": "deque"},
}
"""Classes of plain data that pickles may name beside those of torch's reader, by what replaces them and module."""


def _substitute(name: str, kind: type = _Value) -> Any:
    """A class in place of the one of a full name, by which torch's reader finds it."""
    module, _, last = name.rpartition(".")
    return type(last, (kind,), {"__module__": module})


_SUBSTITUTES: list[Any] = [
    _substitute(f"{module}.{name}", kind)
    for kind, modules in _PLAIN_DATA.items()
    for module, names in modules.items()
    for name in names.split()
]
_REFUSED = sys.stdlib_module_names | {"torch"}
"""Packages whose classes and functions are refused unless torch or `_PLAIN_DATA` lists them."""
_LATER_OPERATIONS = {operation.code for operation in pickletools.opcodes if operation.proto > 2}
_MOST_CLASSES = 32
"""Maximum number of classes of other packages that a checkpoint may name."""


def _read_pickle(file: Path) -> object:
    """Read a pickle with substitutes for classes of plain data, and for the classes and functions of other packages.

    Those are not imported or called, so a configuration or an enumeration of the user may lie beside the weights.
    """
    _check_archive(file)
    others: dict[str, type] = {}  # what is used for the class of a full name
    while True:
        substitutes = [_substitute(name, kind) for name, kind in others.items()]
        try:
            # The warnings are about old pickle protocols.
            with warnings_filtered("ignore"), torch.serialization.safe_globals([*_SUBSTITUTES, *substitutes]):
                return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            name, kind = _needed(str(error))
            is_unknown = "." in name and name.partition(".")[0] not in _REFUSED and others.get(name) in (None, _Value)
            if not is_unknown or others.get(name) is kind or len(others) == _MOST_CLASSES:
                raise ClasswiseError(_refusal(file, str(error), name or ", ".join(others))) from error
            others[name] = kind
        except Exception as error:  # damaged bytes can break the reader anywhere
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise ClasswiseError(
                f"{file} is damaged or not a checkpoint ({reason}); download or copy it again"
            ) from error


def _check_archive(file: Path) -> None:
    """Check that an archive is one of ``torch.save``, and does not expand beyond the memory; other files are none.

    Raises:
        ClasswiseError: for a program of TorchScript or torch.export, and for an archive that is too large.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return  # written before torch 1.6, or damaged; torch.load decides
    names = {member.filename.partition("/")[2] for member in members}
    if "constants.pkl" in names:
        raise ClasswiseError(
            f"{file} is a TorchScript program, which contains code, and is not loaded; if you trust it, audit "
            f"torch.jit.load({file.name!r}) in Python, or name a function that returns it: package.module:callable"
        )
    if "models/model.json" in names or any(member.filename == _EXPORTED for member in members):
        raise ClasswiseError(
            f"{file} is a program of torch.export, not weights; audit torch.export.load({file.name!r}).module() in "
            "Python, or name a function that returns it: package.module:callable"
        )
    if len(members) > 2 * limits.TENSORS:
        raise ClasswiseError(f"{file} has {len(members)} members; at most {limits.TENSORS} tensors are supported")
    limits.check_size(sum(member.file_size for member in members), str(file), file.stat().st_size)


def _needed(reason: str) -> tuple[str, type]:
    """The full name of the class or function that torch's reader refuses, in its message, and what may replace it."""
    if collection := re.search(r"Can only (SETITEM|append|extend).* but got <class '([\w.]+)'>", reason):
        return collection[2], _Dictionary if collection[1] == "SETITEM" else _List
    named = re.search(r"GLOBAL ([\w.]+)|global[: ]+`?([\w.]+\.[\w.]+)", reason)
    return ("" if named is None else named[1] or named[2]), _Value


def _refusal(file: Path, reason: str, name: str) -> str:
    operand = re.search(r"Unsupported operand (\d+)", reason)
    if operand and chr(int(operand[1])) in _LATER_OPERATIONS:
        return (
            f"{file} is written with pickle protocol 3 or later, and the safe reader of torch reads protocol 2; save "
            "it again without pickle_protocol=: torch.save(model.state_dict(), path)"
        )
    if not name:
        return (
            f"{file} is damaged, truncated, or not written by torch.save; download it again or save model.state_dict()"
        )
    return (
        f"{file} is a pickle that would execute code ({name}) and is not loaded; "
        "if you trust it, load it with torch.load and save only model.state_dict()"
    )


def _find(
    file: Path,
    value: object,
    state_dict_key: str | None,
    keys: tuple[str, ...] = (),
    other_keys: tuple[str, ...] = (),
) -> Checkpoint:
    """Find the state dict in nested dictionaries."""
    if len(keys) > _MAX_DEPTH:
        raise ClasswiseError(f"{file} has more than {_MAX_DEPTH} nested dictionaries; save only model.state_dict()")
    if _is_state(value):
        assert isinstance(value, Mapping)
        if state_dict_key is not None:
            raise _is_one_state(file, state_dict_key)
        return Checkpoint(file, dict(value), keys, other_keys)
    entries = _state_entries(value)
    chosen = state_dict_key or next((key for key in STATE_DICT_KEYS if key in entries), "")
    if not chosen and entries:
        chosen = _only(file, entries)
    if chosen not in entries:
        if entries:
            raise unknown("state dict", chosen, entries, owner=str(file))
        _check_entries(file, value)
        content = f"a {type(value).__name__}"
        if isinstance(value, Mapping):
            content = ", ".join([repr(str(key)) for key in value][:8]) or "nothing"
        name = f"no state dict {state_dict_key!r}" if state_dict_key else "no state dict"
        raise ClasswiseError(f"{file} has {name}; it contains {content}; save only model.state_dict()")
    others = tuple(sorted(key for key in entries if key != chosen))
    return _find(file, entries[chosen], None, (*keys, chosen), (*other_keys, *others))


def _is_one_state(file: Path, key: str) -> ClasswiseError:
    return ClasswiseError(f"{file} is a single state dict; omit state_dict_key = {key!r}")


def _only(file: Path, entries: Mapping[str, Any]) -> str:
    """The key of the only dictionary of tensors that may be weights; dictionaries of vectors, such as means, are not.

    Raises:
        ClasswiseError: if several may be.
    """
    found = [key for key, item in entries.items() if not _is_state(item) or any(map(_is_matrix, item.values()))]
    names = found or list(entries)
    if len(names) > 1:
        raise ClasswiseError(
            f"{file} has several dictionaries of tensors: {', '.join(map(repr, names))}; state the key of the weights, "
            f"such as --model-set state_dict_key={names[0]} (in Python: load_model(..., state_dict_key={names[0]!r}))"
        )
    return names[0]


def _check_entries(file: Path, value: object) -> None:
    """Check that the state dict has no packed weights of quantised layers and no extra state but tensors.

    Raises:
        ClasswiseError: if it has.
    """
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(item, Tensor) and str(key).rpartition(".")[2] in _NOT_WEIGHTS:
            raise ClasswiseError(
                f"{file}: entry {str(key)!r} is a {type(item).__name__}, not a tensor; load this state dict in Python "
                "and audit the module"
            )


def _is_state(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(key, str) and isinstance(item, Tensor) for key, item in value.items())
    )


def _is_matrix(tensor: Tensor) -> bool:
    """Whether a tensor has at least two axes that are longer than 1, as the weight of a layer and unlike a mean."""
    return sum(size > 1 for size in tensor.shape) > 1


def _state_entries(value: object) -> dict[str, Any]:
    """The entries of a checkpoint that are, or contain, a state dict."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key): item for key, item in value.items() if _is_state(item) or _has_state(item)}


def _has_state(value: object) -> bool:
    return isinstance(value, Mapping) and any(_is_state(value.get(key)) for key in STATE_DICT_KEYS)
