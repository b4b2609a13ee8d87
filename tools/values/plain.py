"""Results as flat mappings from readable keys to JSON values, independent of the layout of files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
import torch

Plain = str | int | float | bool | None
Readings = Mapping[type, Callable[[Any], object]]
FEW = 20
"""Arrays, columns and lists of more values are recorded as a digest with their sum."""
LONG = 120
"""Longer texts are recorded as a digest."""


def flat(value: object, readings: Readings | None = None) -> dict[str, Plain]:
    """Flatten numbers, texts, arrays, tables, mappings, sequences and dataclasses; omit paths and functions.

    Args:
        value: the result.
        readings: functions that read further results, by type.

    Raises:
        TypeError: for a value of another type.

    Example:
        >>> flat({"pgd": {"correct": [3, 4], "rate": 0.5}})
        {'pgd/correct/0': 3, 'pgd/correct/1': 4, 'pgd/rate': 0.5}
    """
    return {key.strip("/"): plain for key, plain in _pairs(value, readings or {})}


def _pairs(value: Any, readings: Readings) -> Iterator[tuple[str, Plain]]:
    read = next((read for kind, read in readings.items() if isinstance(value, kind)), None)
    if read is not None:
        yield from _pairs(read(value), readings)
    elif value is None or isinstance(value, bool | int | float | str | Fraction | np.generic) or value is pd.NA:
        yield "", _scalar(value)
    elif not isinstance(value, PurePath) and not callable(value):
        for key, part in _parts(value):
            yield from ((f"{key}/{rest}", plain) for rest, plain in _pairs(part, readings))


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """The parts of a composite value by name or position.

    Raises:
        TypeError: for a value of unknown type.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    if isinstance(value, pd.Series):
        unique, values = value.index.is_unique, value.to_numpy(dtype=object, na_value=math.nan)
        value = dict(zip(value.index, values, strict=True)) if unique and len(value) <= FEW else values
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, np.ndarray | list | tuple) and not hasattr(value, "_asdict"):
        array = np.asarray(value) if isinstance(value, np.ndarray) or _is_long(value) else None
        if array is not None and array.size > FEW:
            yield "", _summary(array)
        else:
            items = list(enumerate(value) if array is None else np.ndenumerate(array))
            yield from ((_name(key), part) for key, part in items or [("", "empty")])
    elif isinstance(value, pd.DataFrame | Mapping):
        yield from ((_name(key), value[key]) for key in value)
    elif dataclasses.is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif hasattr(value, "_asdict"):
        yield from value._asdict().items()
    else:
        raise TypeError(f"no plain values of {type(value).__name__}")


def _is_long(value: list[object] | tuple[object, ...]) -> bool:
    return len(value) > FEW and all(isinstance(part, int | float | str) for part in value)


def _scalar(value: Any) -> Plain:
    value = value.item() if isinstance(value, np.generic) else value
    if value is pd.NA or isinstance(value, Fraction) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return f"sha256 {_digest(value.encode())}" if isinstance(value, str) and len(value) > LONG else value


def _name(key: object) -> str:
    return ",".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _summary(values: np.ndarray[Any, Any]) -> str:
    """The digest of an array, its shape and the sum of its finite values; the type of its numbers does not matter."""
    shape = "x".join(map(str, values.shape))
    try:
        numbers = values.astype(np.float64) + 0.0
    except (TypeError, ValueError):
        return f"sha256 {_digest(json.dumps([str(value) for value in values.flat]).encode())}, {shape} texts"
    numbers[np.isnan(numbers)] = np.nan  # one bit pattern
    total = float(numbers[np.isfinite(numbers)].sum())
    return f"sha256 {_digest(np.ascontiguousarray(numbers).tobytes())}, {shape} numbers, sum {total!r}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
