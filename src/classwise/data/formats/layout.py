"""Detection of the channel dimension of image arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from classwise.core.errors import ClasswiseError

_USUAL, _UNUSUAL = (1, 3), (2, 4)
"""Supported numbers of channels; the usual ones are tried first."""


def channels_first(x: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Convert an array of images to (N, C, H, W).

    Args:
        x: (N, H, W), (N, H, W, C) or (N, C, H, W). If both the second and the last dimension may be the channels, the
            second is used.
        where: description of the array for error messages.

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
    raise ClasswiseError(f"{where}: images of shape {x.shape}, expected (N, H, W), (N, H, W, C) or (N, C, H, W)")
