"""The JSON that the package writes. It is that of RFC 8259, which has no NaN and no infinity.

In files, NaN and the infinities are the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as in the JSON of Protocol
Buffers; `classwise.core.files.numbers.Number` reads them back exactly. In results that are printed (``--json``) or
exported for other tools, a number that is not finite is undefined, and null.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

NOT_FINITE: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The texts of the numbers that JSON does not have."""


def json_text(
    value: Any,
    *,
    indent: int | None = None,
    ensure_ascii: bool = True,
    allow_nan: bool = True,
    compact: bool = False,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Encode JSON values; NaN and the infinities become the texts `NOT_FINITE`.

    Raises:
        ValueError: for a number that is not finite, without ``allow_nan``.

    Example:
        >>> json_text({"value": math.nan, "count": 3})
        '{"value": "NaN", "count": 3}'
    """
    encode = functools.partial(
        json.dumps,
        indent=indent,
        ensure_ascii=ensure_ascii,
        allow_nan=False,
        separators=(",", ":") if compact else None,
        default=default,
    )
    try:
        return encode(value)
    except ValueError:
        if not allow_nan:
            raise
        return encode(_converted(value, _text))


def json_value(value: Any) -> Any:
    """Convert mappings, sequences, sets, arrays and numbers; a number that is not finite becomes None.

    Keys become text. Values of other types are unchanged, so that the encoder refuses them.

    Example:
        >>> import numpy as np
        >>> json_value({0: np.array([0.5, np.nan]), "classes": ("cat", None)})
        {'0': [0.5, None], 'classes': ['cat', None]}
    """
    return _converted(value, lambda _: None)


def _text(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _converted(value: Any, replacement: Callable[[float], Any]) -> Any:
    """As `json_value`, with another value for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _converted(item, replacement) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_converted(item, replacement) for item in value]
    if hasattr(value, "tolist"):
        return _converted(value.tolist(), replacement)
    return replacement(value) if isinstance(value, float) and not math.isfinite(value) else value
