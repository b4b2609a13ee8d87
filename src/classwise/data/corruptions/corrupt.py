"""`corrupt`: apply a corruption to a data set."""

from __future__ import annotations

from typing import Literal

import torch

from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Seed
from classwise.data.corruptions import CORRUPTIONS
from classwise.data.corruptions.base import Severity
from classwise.data.images import Images, to_unit

Constants = Literal["cifar-10-c", "imagenet-c"]
STANDARD = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
"""The 15 corruptions of the benchmark, over which errors are averaged; the other four were meant for tuning."""
LARGE = 128
"""Minimum side of images for which the severities of ImageNet-C are the default."""
_BATCH = 512


@checked
def corrupt(
    images: Images, name: str, severity: Severity, *, seed: Seed = 0, constants: Constants | None = None
) -> Images:
    """Apply a corruption to all images; the random numbers of an image depend on the seed and its ``index`` only.

    Args:
        images: any data set; float images are first rounded to 256 levels.
        name: a name in `classwise.data.corruptions.CORRUPTIONS`.
        severity: 1 to 5.
        seed: seed of the random numbers.
        constants: the severities' parameters; by default those of ImageNet-C for images of at least `LARGE` pixels,
            else those of CIFAR-10-C.

    Returns:
        Images, uint8, on the same device, with pixels rounded down as in the authors' code. Their name includes
        corruption, severity and constants.

    Raises:
        ClasswiseError: for an unknown corruption or severity, or grayscale images if the corruption requires colours.
    """
    corruption = CORRUPTIONS.load(name)()
    chosen = constants or ("imagenet-c" if min(images.shape[1:]) >= LARGE else "cifar-10-c")
    level = (corruption.imagenet if chosen == "imagenet-c" else corruption.cifar)[severity - 1]
    rng = CounterRNG(seed, f"corruption/{name}/{severity}")
    parts = []
    for batch in images.batches(_BATCH):
        x = to_unit(batch.x.mul(255).round().byte())
        parts.append(corruption.apply(x, level, rng, batch.index).clamp(0, 1).mul(255).add(1e-3).byte())
    return images.with_pixels(torch.cat(parts), f"{images.name}, {name} {severity} ({chosen})")
