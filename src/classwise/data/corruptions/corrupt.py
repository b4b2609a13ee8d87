"""Corrupt a set of images."""

from __future__ import annotations

from typing import Literal

import torch

from classwise.core.errors import ClasswiseError
from classwise.core.rng import CounterRNG
from classwise.data.corruptions import CORRUPTIONS
from classwise.data.images import Images, to_unit

Constants = Literal["cifar-10-c", "imagenet-c"]
SEVERITIES = (1, 2, 3, 4, 5)
LARGE = 128
"""From this side on images get the constants of ImageNet-C where none are asked for."""
_BATCH = 512


def corrupt(images: Images, name: str, severity: int, *, seed: int = 0, constants: Constants | None = None) -> Images:
    """The same images under a corruption; each image's draws depend on the seed and its own ``index``.

    Args:
        images: any set; float images are rounded to 256 levels first.
        name: a name of `classwise.data.corruptions.CORRUPTIONS`.
        severity: 1 to 5.
        seed: names the draws.
        constants: whose severities; by default those of ImageNet-C from `LARGE` pixels on, else of CIFAR-10-C.

    Returns:
        uint8 images on the same device, pixels cut to whole levels as in the authors' code. The name of the set says
        which corruption, severity and constants.

    Raises:
        ClasswiseError: for an unknown corruption or severity, or one that needs colours and gets grey images.
    """
    if severity not in SEVERITIES:
        raise ClasswiseError(f"severity {severity} of a corruption should be 1 to {len(SEVERITIES)}")
    corruption = CORRUPTIONS.load(name)()
    whose = constants or ("imagenet-c" if min(images.shape[1:]) >= LARGE else "cifar-10-c")
    level = (corruption.imagenet if whose == "imagenet-c" else corruption.cifar)[severity - 1]
    rng = CounterRNG(seed, f"corruption/{name}/{severity}")
    parts = []
    for batch in images.batches(_BATCH):
        x = to_unit(batch.x.mul(255).round().byte())
        parts.append(corruption.apply(x, level, rng, batch.index).clamp(0, 1).mul(255).add(1e-3).byte())
    return images.with_pixels(torch.cat(parts), f"{images.name}, {name} {severity} ({whose})")
