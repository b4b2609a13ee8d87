"""Images beside their adversarial twins, as small PNG files inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from classwise.core.errors import ClasswiseError

MOST = 8
"""Triples on a page."""
SIDE = 76
"""Larger images are made smaller, to this many pixels a side; smaller ones stay as they are."""


@dataclass(frozen=True)
class ExampleImages:
    """Some images and what an attack made of them.

    Attributes:
        clean: (N, C, H, W) in [0, 1].
        adversarial: the same of the attacked images.
        captions: (N,) what is to be said of each pair.

    Raises:
        ClasswiseError: if the two are of different shapes.
    """

    clean: NDArray[np.float32]
    adversarial: NDArray[np.float32]
    captions: Sequence[str]

    def __post_init__(self) -> None:
        if self.clean.ndim != 4 or self.clean.shape != self.adversarial.shape:
            raise ClasswiseError(
                f"images {self.clean.shape} and adversarial images {self.adversarial.shape} should have one shape "
                "(N, channels, height, width); give the data set that was audited"
            )


@dataclass(frozen=True)
class Triple:
    """An image, its twin and their difference as data URIs, and a caption."""

    clean: str
    adversarial: str
    difference: str
    caption: str


def triples(examples: ExampleImages) -> tuple[list[Triple], float]:
    """The first `MOST` pairs as data URIs, and the factor by which their differences are amplified.

    A difference is drawn around middle grey; one factor serves all, so that pictures can be compared. The largest
    difference becomes black or white.
    """
    change = examples.adversarial[:MOST] - examples.clean[:MOST]
    largest = float(np.abs(change).max(initial=0))
    factor = 0.5 / largest if largest else 1.0
    found = [
        Triple(
            data_uri(examples.clean[row]),
            data_uri(examples.adversarial[row]),
            data_uri(0.5 + factor * change[row]),
            examples.captions[row],
        )
        for row in range(len(change))
    ]
    return found, factor


def data_uri(pixels: NDArray[np.floating]) -> str:
    """(C, H, W) in [0, 1] as a ``data:image/png`` address; one channel and more than three are drawn in grey."""
    levels = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    picture = (
        Image.fromarray(levels.transpose(1, 2, 0))
        if len(levels) == 3
        else Image.fromarray(np.rint(levels.mean(axis=0)).astype(np.uint8))
    )
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
