"""Results as values that JSON has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def json_value(value: Any) -> Any:
    """Convert mappings, sequences, sets, arrays and numbers; a number that is not finite becomes None.

    Keys become text. Values of other types are unchanged, so that the encoder refuses them.

    Example:
        >>> import numpy as np
        >>> json_value({0: np.array([0.5, np.nan]), "classes": ("cat", None)})
        {'0': [0.5, None], 'classes': ['cat', None]}
    """
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
