"""Rows of images with captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from classwise.reporting.svg import Drawing, Image, Label, shorten, width_of

SIDE, SPACE, HEAD, FOOT = 64.0, 10.0, 40.0, 34.0


class GalleryRow(NamedTuple):
    """A row of images with a title.

    Attributes:
        title: title of the row.
        pixels: images (N, C, H, W) in [0, 1].
        captions: (N,) one line per image.
    """

    title: str
    pixels: NDArray[np.floating[Any]]
    captions: Sequence[str]


def gallery(title: str, rows: Sequence[GalleryRow]) -> Drawing:
    """Draw rows of images.

    Args:
        title: title of the figure.
        rows: rows from top to bottom.
    """
    most = max(len(row.pixels) for row in rows)
    titles = [width_of(title, 13.5), *(width_of(row.title, 11) for row in rows)]
    width = max(most * (SIDE + SPACE), *titles)
    drawing = Drawing.titled(width, HEAD + len(rows) * (SIDE + FOOT + 8), title)
    for number, row in enumerate(rows):
        top = HEAD + number * (SIDE + FOOT + 8)
        drawing.marks.append(Label(0, top - 6, row.title, "text-soft", 11))
        for place, (pixels, caption) in enumerate(zip(row.pixels, row.captions, strict=True)):
            left = place * (SIDE + SPACE)
            drawing.marks.append(Image(left, top, SIDE, pixels))
            drawing.marks.append(Label(left, top + SIDE + 12, shorten(caption, 13), "text", 9.5))
    return drawing
