"""Reading of files that others may have damaged or replaced: regular files of limited size, and JSON of a known type.

A file is opened without waiting, so that a FIFO or a device in its place is an error and no hang.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits

T = TypeVar("T")

RESTORE = "restore it from a copy"
"""The usual suggestion for a damaged file."""
_SPECIAL = re.compile(r"\d{19}|\\u[dD][89a-fA-F]")
"""Text with an integer of more than 64 bits, or half of a surrogate pair, has a match."""


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a regular file for reading in binary mode; symbolic links are followed.

    Raises:
        ClasswiseError: if the path is a folder, a FIFO, a socket or a device.
        OSError: if the file does not exist or cannot be read.

    Example:
        >>> open_regular("/dev/null")
        Traceback (most recent call last):
        classwise.core.errors.ClasswiseError: /dev/null is not a regular file; give a file
    """
    _check_regular(path, Path(path).stat())  # before the device is opened
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = open(handle, "rb")  # noqa: SIM115  # the caller closes it
    try:
        _check_regular(path, os.fstat(handle))
    except ClasswiseError:
        file.close()
        raise
    return file


def check_regular(path: str | os.PathLike[str]) -> None:
    """Check, before a file is opened by other means, that it is a regular one; a missing file is not an error.

    Raises:
        ClasswiseError: as `open_regular`.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_regular(path, Path(path).stat())


def _check_regular(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise ClasswiseError(f"{os.fspath(path)} is {kind}; give a file")


def read_bytes(path: str | os.PathLike[str], limit: int = limits.TEXT_BYTES) -> bytes:
    """Read a regular file of at most ``limit`` bytes.

    Raises:
        ClasswiseError: if it is missing, cannot be read, is larger, or is not a regular file.
    """
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ClasswiseError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    if len(content) > limit:
        size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"
        raise ClasswiseError(f"{os.fspath(path)} is larger than {size}, the limit for such a file")
    return content


def read_text(path: str | os.PathLike[str], limit: int = limits.TEXT_BYTES) -> str:
    """Read a regular file of at most ``limit`` bytes as UTF-8.

    Raises:
        ClasswiseError: as `read_bytes`, or if the file is not UTF-8.
    """
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ClasswiseError(
            f"{os.fspath(path)} is not UTF-8 text (byte {error.start}); convert it to UTF-8"
        ) from error


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; the bare NaN and Infinity of files of earlier versions are read as these numbers.

    Raises:
        ValueError: if the text is not JSON in UTF-8, or has more than `limits.YAML_DEPTH` nested collections, an
            integer of more than 64 bits, or half of a surrogate pair.
    """
    text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    special = _SPECIAL.search(text) is not None
    try:
        value = json.loads(text, parse_int=_integer if special else None)
    except RecursionError:
        raise ValueError("too many nested collections") from None
    if text.count("[") + text.count("{") > limits.YAML_DEPTH:
        _check_depth(value)
    if special:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _integer(digits: str) -> int:
    value = int(digits)
    if abs(value) > limits.INTEGER:
        raise ValueError(f"an integer of {value.bit_length()} bits")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(limits.YAML_DEPTH + 1):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return
    raise ValueError("too many nested collections")


def _within(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def fitting(kind: type[T], value: object, where: str, advice: str = "") -> T:
    """Check that a JSON value has a type; tuples, named tuples and dataclasses are built from lists and objects.

    Args:
        kind: a `TypedDict`, whose further keys are kept, a dataclass, or another type that pydantic knows.
        value: the value, as `parse_json` returns it.
        where: the file, and the place in it: the beginning of the message.
        advice: the suggestion in the message.

    Raises:
        ClasswiseError: naming the first key whose value has another type.

    Example:
        >>> fitting(dict[str, float], {"cat": 1, "dog": None}, "a.json", "repeat it")
        Traceback (most recent call last):
        classwise.core.errors.ClasswiseError: a.json is damaged (dog = None: Input should be a valid number); repeat it
    """
    import pydantic

    from classwise.core.settings.config import explain

    try:
        found = _adapter(cast("Hashable", kind)).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        raise damaged(where, explain(error), advice) from error
    return cast("T", _with_further_keys(value, found))


def _with_further_keys(value: object, found: object) -> object:
    """A checked value with the keys that its type does not have."""
    if isinstance(value, dict) and isinstance(found, dict):
        return {key: _with_further_keys(value[key], found[key]) if key in found else value[key] for key in value}
    if isinstance(value, list) and isinstance(found, list):
        return [_with_further_keys(item, checked) for item, checked in zip(value, found, strict=True)]
    return found


@functools.lru_cache(maxsize=64)
def _adapter(kind: Any) -> Any:
    """Validates values of a type; it takes longer to build than to use."""
    import pydantic

    return pydantic.TypeAdapter(kind)


def damaged(where: str, problem: str, advice: str = "") -> ClasswiseError:
    """The error for a damaged file."""
    return ClasswiseError(f"{where} is damaged ({problem}); {advice or RESTORE}")


class Lines(NamedTuple):
    """The records of a file of JSON lines.

    Attributes:
        records: the valid ones, in order.
        problems: a message for each line that is not valid, with its number; or that the file cannot be read.
    """

    records: list[Any]
    problems: list[str]


def read_lines(path: Path, kind: Any) -> Lines:
    """Read a file of JSON lines, each of one type. A last line without its end, as of a killed writer, is left out.

    Args:
        path: the file; a missing one has no lines.
        kind: the type of each record, as of `fitting`.
    """
    found = Lines([], [])
    try:
        lines = read_bytes(path).split(b"\n")[:-1] if path.exists() else []
    except ClasswiseError as error:
        return Lines([], [str(error)])
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number},"
        try:
            found.records.append(fitting(kind, parse_json(line), where))
        except ClasswiseError as error:
            found.problems.append(str(error))
        except ValueError:
            found.problems.append(str(damaged(where, "not JSON")))
    return found
