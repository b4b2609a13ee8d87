"""Images that a paper identifies by their index in the official order of a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from classwise.data.images import Images
from classwise.papers.scales import CIFAR
from classwise.stats.counts import IntArray

_FIRST = (3, 8, 8, 0, 6, 6, 1, 6, 3, 1)
"""Labels of the first test images of CIFAR-10 in the official files; re-packed data sets have another order."""
_TEST_IMAGES = 10_000


def official(images: Images) -> bool:
    """Whether the images are the full test set of CIFAR-10 in the order of the official files."""
    start = images.y[: len(_FIRST)].tolist()
    return images.name == CIFAR and len(images) == _TEST_IMAGES and start == list(_FIRST)


def choose_image(
    images: Images, number: int, candidates: Sequence[int] | IntArray, otherwise: int | None = None
) -> tuple[int, str]:
    """Choose the image that a paper names if it can be identified, else the first candidate, else ``otherwise``.

    Args:
        images: test images.
        number: the paper's image index.
        candidates: indices of images with the property that the paper shows, best first.
        otherwise: index of the image to show if there is no candidate; None for the first test image.

    Returns:
        The index of an image, and a sentence that explains the choice.
    """
    if official(images):
        return number, f"Image {number} of CIFAR-10's test set, as in the paper."
    reason = f"Image {number} of the paper can be identified only in the official order of CIFAR-10's full test set"
    if len(candidates):
        first = int(np.asarray(candidates)[0])
        return first, f"{reason}; shown is image {first}, the first with the same property."
    shown = int(images.index[0]) if otherwise is None else otherwise
    return shown, f"{reason}; no image here has the same property, and image {shown} is shown."
