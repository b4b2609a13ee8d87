"""Images as small PNG files embedded in a page."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 76
"""Maximum side length in pixels; larger images are downsampled, smaller ones are embedded unmodified."""


def data_uri(pixels: NDArray[np.floating]) -> str:
    """Encode pixels (C, H, W) in [0, 1] as a ``data:image/png`` URI; images without three channels become grey."""
    levels = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    image = (
        Image.fromarray(levels.transpose(1, 2, 0))
        if len(levels) == 3
        else Image.fromarray(np.rint(levels.mean(axis=0)).astype(np.uint8))
    )
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
