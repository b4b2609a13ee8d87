"""Pictures side by side: images and what was made of them."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from classwise.errors import UserError

GAP = 2
"""White pixels between pictures, before they are enlarged."""


def picture_sheet(rows: Sequence[Tensor], scale: int = 4) -> bytes:
    """A PNG with a row of pictures for each tensor; pixels become squares of ``scale``.

    Args:
        rows: (N, C, H, W) uint8, or float in [0, 1]; C is 1 or 3, and H and W are the same for all. A bool mask
            (N, H, W) is shown in black and white.
        scale: how many times as large.

    Raises:
        UserError: if there is nothing to show, or pictures differ in size.
    """
    shown = [_bytes(row) for row in rows]
    if not shown or any(row.shape[1:] != shown[0].shape[1:] or not len(row) for row in shown):
        sizes = ", ".join(str(tuple(row.shape)) for row in rows) or "none"
        raise UserError(f"a sheet needs rows of pictures of one size; these are {sizes}")
    height, width = shown[0].shape[1:3]
    most = max(len(row) for row in shown)
    sheet = np.full((len(shown) * (height + GAP) - GAP, most * (width + GAP) - GAP, 3), 255, np.uint8)
    for down, row in enumerate(shown):
        for right, picture in enumerate(row):
            top, left = down * (height + GAP), right * (width + GAP)
            sheet[top : top + height, left : left + width] = picture
    large = Image.fromarray(sheet).resize((sheet.shape[1] * scale, sheet.shape[0] * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    large.save(buffer, "PNG")
    return buffer.getvalue()


def _bytes(row: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(N, H, W, 3)."""
    row = row.detach().cpu()
    row = row[:, None].float() if row.ndim == 3 else row
    if row.is_floating_point():
        row = (row * 255).round()
    row = row.byte().expand(-1, 3, -1, -1)
    found: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = row.permute(0, 2, 3, 1).numpy()
    return found
