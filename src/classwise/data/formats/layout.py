"""Which dimension of an array holds the channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from classwise.core.errors import ClasswiseError

_USUAL, _UNUSUAL = (1, 3), (2, 4)
"""How many channels an image may have; the usual counts are tried first."""


def channels_first(x: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Images of a numpy array as (N, C, H, W).

    Args:
        x: (N, H, W), (N, H, W, C) or (N, C, H, W). Where both dimensions are as
            likely to be the channels, the second is taken.
        where: begins the line of an error.

    Raises:
        ClasswiseError: if neither dimension can be the channels.
    """
    if x.ndim == 3:
        return x[:, None]
    for channels in (_USUAL, _UNUSUAL) if x.ndim == 4 else ():
        if x.shape[1] in channels:
            return x
        if x.shape[3] in channels:
            return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    raise ClasswiseError(f"{where}: images of shape {x.shape} should be (N, H, W), (N, H, W, C) or (N, C, H, W)")
