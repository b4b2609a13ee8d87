"""Weather: fog, frost, snow and spatter (Hendrycks and Dietterich, 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from classwise.core.rng import CounterRNG
from classwise.data.corruptions.base import Corruption
from classwise.data.corruptions.filters import blurred, enlarged, streaked

LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""
WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
FROST = (0.92, 0.96, 1.0)
SURE = 0.8
"""Mud below this density is none."""


class Fog(Corruption):
    """A plasma fractal on top, then the contrast back to the image's maximum."""

    cifar = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
    imagenet = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))

    def apply(self, x: Tensor, level: tuple[float, float], rng: CounterRNG, index: Tensor) -> Tensor:
        """The level is the thickness of the fog and how fast its details fade."""
        thickness, decay = level
        height, width = x.shape[-2:]
        fog = plasma(rng, index, 2 ** math.ceil(math.log2(max(height, width, 2))), decay)[:, None, :height, :width]
        most = x.amax((1, 2, 3), keepdim=True)
        return (x + thickness * fog) * most / (most + thickness)


class Frost(Corruption):
    """The image darkened, and bluish crystals on it.

    The authors lay photographs of frost on the image. Those are not part of this library: the crystals here are drawn,
    ridges of a plasma fractal, and only the two shares are theirs.
    """

    cifar = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    imagenet = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))

    def apply(self, x: Tensor, level: tuple[float, float], rng: CounterRNG, index: Tensor) -> Tensor:
        """The level is the share of the image and that of the frost."""
        keep, amount = level
        height, width = x.shape[-2:]
        sheet = plasma(rng, index, 2 ** math.ceil(math.log2(max(height, width, 2))), 2.0)[:, None, :height, :width]
        ridges = (1 - (2 * sheet - 1).abs()) ** 2
        return keep * x + amount * (0.4 + 0.6 * ridges) * coloured(FROST, x)


class Snow(Corruption):
    """Flakes blurred by their fall, once as they are and once turned by 180 degrees, on an image that is whitened."""

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
        """The level: of the layer, the flakes, their fall and the image.

        Mean, deviation and enlargement of the layer; the least value of a flake; radius and deviation of the fall; the
        share of the image that is kept.
        """
        mean, deviation, zoom, least, radius, fall, keep = level
        layer = mean + deviation * rng.child("flakes").normal(index, (1, *x.shape[-2:]))
        layer = enlarged(layer, zoom)
        layer = torch.where(layer < least, 0.0, layer).clamp(0, 1)
        layer = streaked(layer, radius, fall, -135 + 90 * rng.child("fall").uniform(index))
        whitened = torch.maximum(x, 1.5 * grey(x) + 0.5)
        return keep * x + (1 - keep) * whitened + layer + layer.flip((-2, -1))


class Spatter(Corruption):
    """Drops: of water, which lighten (severities 1 to 3), or of mud, which cover (4 and 5).

    The authors shade the water by the distance to a drop's edge; here it is by the drop's thickness.
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
        """The level: of the liquid and its drops.

        Mean, deviation and smoothness of the liquid; where drops begin; the strength of water or the smoothness of
        the edges of mud; whether it is mud.
        """
        mean, deviation, smooth, least, amount, mud = level
        liquid = blurred(mean + deviation * rng.normal(index, (1, *x.shape[-2:])), smooth)
        if mud:
            cover = blurred((liquid > least).float(), amount)
            cover = torch.where(cover < SURE, 0.0, cover)
            return x * (1 - cover) + cover * coloured(MUD, x)
        thickness = (liquid - least).clamp(min=0)
        most = thickness.amax((1, 2, 3), keepdim=True).clamp(min=1e-6)
        return x + amount * thickness / most * coloured(WATER, x)


def grey(x: Tensor) -> Tensor:
    """The luminance (N, 1, H, W) of colour images; the mean of other channels."""
    if x.shape[1] != len(LUMINANCE):
        return x.mean(1, keepdim=True)
    return (x * coloured(LUMINANCE, x)).sum(1, keepdim=True)


def coloured(colour: tuple[float, float, float], x: Tensor) -> Tensor:
    """A colour to multiply (N, 3, H, W) by; its luminance for images of other channels."""
    if x.shape[1] == len(colour):
        return torch.tensor(colour, device=x.device).view(1, -1, 1, 1)
    return torch.tensor(sum(a * b for a, b in zip(colour, LUMINANCE, strict=True)), device=x.device)


def plasma(rng: CounterRNG, index: Tensor, side: int, decay: float) -> Tensor:
    """Plasma fractals (N, side, side) in [0, 1] by the diamond-square algorithm on a torus; side is a power of two."""
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
    """The mean of four neighbours plus uniform noise of ``size`` squared, as the authors' code has it."""
    return total / 4 + size * size * (2 * rng.uniform(index, total.shape[1:], counter) - 1)
