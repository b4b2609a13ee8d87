"""Detection of the channel dimension of image arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from classwise.core.errors import ClasswiseError

_USUAL, _UNUSUAL = (1, 3), (2, 4)
"""Supported numbers of channels; the usual ones are tried first."""

CHANNELS_FIRST = "x.permute(0, 3, 1, 2)"
"""Converts a tensor (N, H, W, C) to (N, C, H, W)."""


def looks_channels_last(shape: Sequence[int]) -> bool:
    """Whether a shape is that of images (N, H, W, C) rather than (N, C, H, W).

    The last dimension may be the channels and the second may not, and as (N, C, H, W) the images are further from a
    square. So (N, 3, 32, 3), (N, 12, 4, 4) and (N, 64, 1, 1) are channels first.
    """
    if len(shape) != 4 or min(shape) < 1:
        return False
    _, second, third, last = shape
    return last in (1, 3, 4) and second not in (*_USUAL, *_UNUSUAL) and _aspect(second, third) < _aspect(third, last)


def _aspect(height: int, width: int) -> float:
    """The longer side of an image divided by the shorter."""
    return max(height, width) / min(height, width)


def channels_first(x: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Convert an array of images to (N, C, H, W).

    Args:
        x: (N, H, W), (N, H, W, C) or (N, C, H, W). If both the second and the last dimension may be the channels, 1
            or 3 channels precede 2 or 4, then the second dimension is used.
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
