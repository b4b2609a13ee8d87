"""Images that a paper names by their number in the official order of a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from classwise.data.images import Images
from classwise.papers.scales import CIFAR
from classwise.stats.counts import IntArray

_FIRST = (3, 8, 8, 0, 6, 6, 1, 6, 3, 1)
"""The labels of CIFAR-10's first test images in the official files; re-packed sets have other orders."""
_TEST_IMAGES = 10_000


def official(images: Images) -> bool:
    """Whether these are all test images of CIFAR-10 in the order of the official files."""
    start = images.y[: len(_FIRST)].tolist()
    return images.name == CIFAR and len(images) == _TEST_IMAGES and start == list(_FIRST)


def chosen(
    images: Images, number: int, candidates: Sequence[int] | IntArray, otherwise: int | None = None
) -> tuple[int, str]:
    """The image that a paper names if it can be identified, else the first candidate, else any.

    Args:
        images: the test images.
        number: the paper's.
        candidates: numbers of images of which the paper's claim is true here, the best one first.
        otherwise: which one to show if there is no candidate; None: the first of the test set.

    Returns:
        The number of an image, and a sentence on how it came to be this one.
    """
    if official(images):
        return number, f"Image {number} of CIFAR-10's test set, as in the paper."
    reason = f"The paper's image {number} can only be identified in the official order of all test images of CIFAR-10"
    if len(candidates):
        first = int(np.asarray(candidates)[0])
        return first, f"{reason}; shown is image {first}, the first here of which the same is true."
    shown = int(images.index[0]) if otherwise is None else otherwise
    return shown, f"{reason}; here the same is true of no image, and image {shown} is shown."
