"""Weather: fog, frost, snow and spatter (Hendrycks and Dietterich, 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.data.corruptions.base import Corruption
from classwise.data.corruptions.filters import blurred, enlarged, streaked

LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""
WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
FROST = (0.92, 0.96, 1.0)
MIN_COVER = 0.8
"""Mud below this density is removed."""


class Fog(Corruption):
    """A plasma fractal added to the image, rescaled to the image's maximum."""

    cifar = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
    imagenet = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))

    def apply(self, x: Tensor, level: tuple[float, float], rng: CounterRNG, index: Tensor) -> Tensor:
        """Apply the fog; the level is its thickness and the decay of its details."""
        thickness, decay = level
        height, width = x.shape[-2:]
        fog = plasma(rng, index, 2 ** math.ceil(math.log2(max(height, width, 2))), decay)[:, None, :height, :width]
        most = x.amax((1, 2, 3), keepdim=True)
        return (x + thickness * fog) * most / (most + thickness)


class Frost(Corruption):
    """A weighted sum of the image and bluish crystals.

    The authors use photographs of frost, which are not part of this library. Here the crystals are ridges of a plasma
    fractal; only the two weights are those of the authors.
    """

    cifar = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    imagenet = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))

    def apply(self, x: Tensor, level: tuple[float, float], rng: CounterRNG, index: Tensor) -> Tensor:
        """Apply the frost; the level is the weight of the image and that of the frost."""
        weight, amount = level
        height, width = x.shape[-2:]
        sheet = plasma(rng, index, 2 ** math.ceil(math.log2(max(height, width, 2))), 2.0)[:, None, :height, :width]
        ridges = (1 - (2 * sheet - 1).abs()) ** 2
        return weight * x + amount * (0.4 + 0.6 * ridges) * coloured(FROST, x)


class Snow(Corruption):
    """Motion-blurred flakes, and the same rotated by 180 degrees, on a whitened image."""

    cifar = (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    )
    imagenet = (
        (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
    )

    def apply(
        self, x: Tensor, level: tuple[float, float, float, float, int, float, float], rng: CounterRNG, index: Tensor
    ) -> Tensor:
        """Apply the snow.

        The level is mean, standard deviation and zoom of the layer of flakes, the threshold of flakes, radius and
        standard deviation of the motion blur, and the weight of the image.
        """
        mean, deviation, zoom, threshold, radius, fall, weight = level
        layer = mean + deviation * rng.child("flakes").normal(index, (1, *x.shape[-2:]))
        layer = enlarged(layer, zoom)
        layer = torch.where(layer < threshold, 0.0, layer).clamp(0, 1)
        layer = streaked(layer, radius, fall, -135 + 90 * rng.child("fall").uniform(index))
        whitened = torch.maximum(x, 1.5 * grey(x) + 0.5)
        return weight * x + (1 - weight) * whitened + layer + layer.flip((-2, -1))


class Spatter(Corruption):
    """Drops of water, which brighten (severities 1 to 3), or of mud, which occlude (4 and 5).

    The authors shade water by the distance to the edge of a drop; here it is shaded by the thickness of the drop.
    """

    cifar = (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1.0, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    )
    imagenet = (
        (0.65, 0.3, 4.0, 0.69, 0.6, False),
        (0.65, 0.3, 3.0, 0.68, 0.6, False),
        (0.65, 0.3, 2.0, 0.68, 0.5, False),
        (0.65, 0.3, 1.0, 0.65, 1.5, True),
        (0.67, 0.4, 1.0, 0.65, 1.5, True),
    )

    def apply(
        self, x: Tensor, level: tuple[float, float, float, float, float, bool], rng: CounterRNG, index: Tensor
    ) -> Tensor:
        """Apply the drops.

        The level is mean, standard deviation and smoothness of the liquid, the threshold of drops, the strength of
        water or the smoothness of the edges of mud, and whether it is mud.
        """
        mean, deviation, smooth, threshold, amount, mud = level
        liquid = blurred(mean + deviation * rng.normal(index, (1, *x.shape[-2:])), smooth)
        if mud:
            cover = blurred((liquid > threshold).float(), amount)
            cover = torch.where(cover < MIN_COVER, 0.0, cover)
            return x * (1 - cover) + cover * coloured(MUD, x)
        thickness = (liquid - threshold).clamp(min=0)
        most = thickness.amax((1, 2, 3), keepdim=True).clamp(min=1e-6)
        return x + amount * thickness / most * coloured(WATER, x)


def grey(x: Tensor) -> Tensor:
    """Luminance (N, 1, H, W) of RGB images; the channel mean of others."""
    if x.shape[1] != len(LUMINANCE):
        return x.mean(1, keepdim=True)
    return (x * coloured(LUMINANCE, x)).sum(1, keepdim=True)


def coloured(colour: tuple[float, float, float], x: Tensor) -> Tensor:
    """A colour that broadcasts with (N, 3, H, W); its luminance if the images are not RGB."""
    if x.shape[1] == len(colour):
        return torch.tensor(colour, device=x.device).view(1, -1, 1, 1)
    return torch.tensor(sum(a * b for a, b in zip(colour, LUMINANCE, strict=True)), device=x.device)


def plasma(rng: CounterRNG, index: Tensor, side: int, decay: float) -> Tensor:
    """Plasma fractals (N, side, side) in [0, 1], by the diamond-square algorithm on a torus; side is a power of 2."""
    sheet = torch.zeros(len(index), side, side, device=index.device)
    step, size, counter = side, 100.0, 0
    while step >= 2:
        half = step // 2
        corners = sheet[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        sheet[:, half::step, half::step] = _wobbled(pairs + pairs.roll(-1, 2), size, rng, index, counter)
        middles = sheet[:, half::step, half::step]
        along = corners + corners.roll(-1, 2)
        across = middles + middles.roll(1, 1)
        sheet[:, ::step, half::step] = _wobbled(along + across, size, rng, index, counter + 1)
        along, across = corners + corners.roll(-1, 1), middles + middles.roll(1, 2)
        sheet[:, half::step, ::step] = _wobbled(along + across, size, rng, index, counter + 2)
        step, size, counter = half, size / decay, counter + 3
    sheet -= sheet.amin((1, 2), keepdim=True)
    return sheet / sheet.amax((1, 2), keepdim=True)


def _wobbled(total: Tensor, size: float, rng: CounterRNG, index: Tensor, counter: int) -> Tensor:
    """The mean of four neighbours plus uniform noise of amplitude ``size`` squared, as in the authors' code."""
    return total / 4 + size * size * (2 * rng.uniform(index, total.shape[1:], counter) - 1)
