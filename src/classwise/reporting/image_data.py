"""Images and their adversarial examples as small PNG files embedded in a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from classwise.core.errors import ClasswiseError

MAX_EXAMPLES = 8
"""Maximum number of example images on a page."""
SIDE = 76
"""Maximum side length in pixels; larger images are downsampled, smaller ones are embedded unmodified."""


@dataclass(frozen=True)
class ExampleImages:
    """Clean images and their adversarial examples.

    Attributes:
        clean: (N, C, H, W) in [0, 1].
        adversarial: (N, C, H, W) in [0, 1].
        captions: (N,) one per pair.

    Raises:
        ClasswiseError: if the two shapes differ.
    """

    clean: NDArray[np.float32]
    adversarial: NDArray[np.float32]
    captions: Sequence[str]

    def __post_init__(self) -> None:
        if self.clean.ndim != 4 or self.clean.shape != self.adversarial.shape:
            raise ClasswiseError(
                f"clean: shape {self.clean.shape} must be (N, channels, height, width) and equal that of the "
                f"adversarial images, {self.adversarial.shape}; use the data set that was audited"
            )


@dataclass(frozen=True)
class Triple:
    """An image, its adversarial example and their difference as data URIs, and a caption."""

    clean: str
    adversarial: str
    difference: str
    caption: str


def triples(examples: ExampleImages) -> tuple[list[Triple], float]:
    """Encode the first `MAX_EXAMPLES` pairs and their differences as data URIs.

    Differences are drawn around middle grey and amplified by one common factor; the largest becomes black or white.

    Returns:
        The encoded images, and the amplification factor.
    """
    change = examples.adversarial[:MAX_EXAMPLES] - examples.clean[:MAX_EXAMPLES]
    largest = float(np.abs(change).max(initial=0))
    factor = 0.5 / largest if largest else 1.0
    encoded = [
        Triple(
            data_uri(examples.clean[row]),
            data_uri(examples.adversarial[row]),
            data_uri(0.5 + factor * change[row]),
            examples.captions[row],
        )
        for row in range(len(change))
    ]
    return encoded, factor


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
