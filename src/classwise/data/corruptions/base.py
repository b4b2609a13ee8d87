"""Common corruptions at five severities: Hendrycks and Dietterich, Benchmarking Neural Network Robustness (2019).

The 15 + 4: four noises, three blurs, fog and five digital ones here; what moves pixels (glass and motion blur, the
elastic transform) in `classwise.data.warps`, snow, frost and spatter in `classwise.data.weather`. The severities are
those of the authors' code for CIFAR-10-C (32 pixels) or ImageNet-C (224 pixels); what is drawn is ours, by seed and
image, so that a set corrupted here resembles theirs and is not theirs. The files that they published are read by the
format ``cifar-c``.
"""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from classwise.data import CORRUPTIONS
from classwise.data.images import Images, to_unit
from classwise.draws import Draws
from classwise.errors import UserError

Constants = Literal["cifar-10-c", "imagenet-c"]

SEVERITIES = (1, 2, 3, 4, 5)
LARGE = 128
"""From this side on images get the constants of ImageNet-C where none are asked for."""
_BATCH = 512


class Corruption(ABC):
    """One way to spoil images.

    Attributes:
        cifar: what the five severities are in CIFAR-10-C.
        imagenet: what they are in ImageNet-C.
    """

    cifar: ClassVar[tuple[Any, ...]]
    imagenet: ClassVar[tuple[Any, ...]]

    @abstractmethod
    def apply(self, x: Tensor, level: Any, draws: Draws, index: Tensor) -> Tensor:
        """Spoil images (N, C, H, W) in [0, 1], numbered (N,); what leaves [0, 1] is cut off by the caller."""


def corrupt(images: Images, name: str, severity: int, *, seed: int = 0, constants: Constants | None = None) -> Images:
    """The same images under a corruption; each image's draws depend on the seed and its own ``index``.

    Args:
        images: any set; float images are rounded to 256 levels first.
        name: a name of `classwise.data.CORRUPTIONS`.
        severity: 1 to 5.
        seed: names the draws.
        constants: whose severities; by default those of ImageNet-C from `LARGE` pixels on, else of CIFAR-10-C.

    Returns:
        uint8 images on the same device, pixels cut to whole levels as in the authors' code. The name of the set says
        which corruption, severity and constants.

    Raises:
        UserError: for an unknown corruption or severity, or one that needs colours and gets grey images.
    """
    if severity not in SEVERITIES:
        raise UserError(f"severity {severity} of a corruption should be 1 to {len(SEVERITIES)}")
    corruption = CORRUPTIONS.load(name)()
    whose = constants or ("imagenet-c" if min(images.shape[1:]) >= LARGE else "cifar-10-c")
    level = (corruption.imagenet if whose == "imagenet-c" else corruption.cifar)[severity - 1]
    draws = Draws(seed, f"corruption/{name}/{severity}")
    parts = []
    for batch in images.batches(_BATCH):
        x = to_unit(batch.x.mul(255).round().byte())
        parts.append(corruption.apply(x, level, draws, batch.index).clamp(0, 1).mul(255).add(1e-3).byte())
    return images.with_pixels(torch.cat(parts), f"{images.name}, {name} {severity} ({whose})")


class GaussianNoise(Corruption):
    """Normal noise on every value."""

    cifar = (0.04, 0.06, 0.08, 0.09, 0.10)
    imagenet = (0.08, 0.12, 0.18, 0.26, 0.38)

    def apply(self, x: Tensor, level: float, draws: Draws, index: Tensor) -> Tensor:
        """The deviation is the level."""
        return x + level * draws.normal(index, x.shape[1:])


class ShotNoise(Corruption):
    """Poisson noise, as of few photons."""

    cifar = (500, 250, 100, 75, 50)
    imagenet = (60, 25, 12, 5, 3)

    def apply(self, x: Tensor, level: float, draws: Draws, index: Tensor) -> Tensor:
        """The level is the number of photons of a white value; counts by inverting each level's distribution."""
        from scipy.stats import poisson

        most = int(poisson.ppf(1 - 1e-9, level)) + 1
        table = poisson.cdf(np.arange(most)[None], np.arange(256)[:, None] / 255 * level)
        rows = torch.from_numpy(table).to(x.device).clamp_(max=1 - 1e-12) + torch.arange(256, device=x.device)[:, None]
        grey = x.mul(255).round().long()
        wanted = grey + draws.uniform(index, x.shape[1:]).double()  # row g of the table runs from g to g + 1
        return (torch.searchsorted(rows.flatten(), wanted, right=True) - grey * most).float() / level


class ImpulseNoise(Corruption):
    """Salt and pepper."""

    cifar = (0.01, 0.02, 0.03, 0.05, 0.07)
    imagenet = (0.03, 0.06, 0.09, 0.17, 0.27)

    def apply(self, x: Tensor, level: float, draws: Draws, index: Tensor) -> Tensor:
        """The level is the share of values that become 0 or 1, as often the one as the other."""
        u = draws.uniform(index, x.shape[1:])
        return torch.where(u < level, (u < level / 2).float(), x)


class SpeckleNoise(Corruption):
    """Normal noise in proportion to the value."""

    cifar = (0.06, 0.1, 0.12, 0.16, 0.2)
    imagenet = (0.15, 0.2, 0.35, 0.45, 0.6)

    def apply(self, x: Tensor, level: float, draws: Draws, index: Tensor) -> Tensor:
        """The level is the deviation at white."""
        return x + level * x * draws.normal(index, x.shape[1:])


class GaussianBlur(Corruption):
    """A Gaussian filter, cut at four deviations; the edge goes on beyond the border."""

    cifar = (0.4, 0.6, 0.7, 0.8, 1.0)
    imagenet = (1.0, 2.0, 3.0, 4.0, 6.0)

    def apply(self, x: Tensor, level: float, draws: Draws, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the deviation in pixels."""
        return blurred(x, level)


class DefocusBlur(Corruption):
    """A disk, itself smoothed by a Gaussian of 3x3 (5x5 for large disks); images are mirrored at the border."""

    cifar = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
    imagenet = ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5))

    def apply(self, x: Tensor, level: tuple[float, float], draws: Draws, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the radius of the disk and the deviation of the Gaussian, in pixels."""
        radius, smooth = level
        small = 1 if radius <= 8 else 2
        reach = int(radius) + small
        place = torch.arange(-reach, reach + 1, dtype=torch.float32, device=x.device)
        disk = ((place[:, None] ** 2 + place**2) <= radius**2).float()
        line = _gaussian(smooth, small).to(x)
        kernel = filtered((disk / disk.sum())[None, None], line[:, None] * line, "constant")[0, 0]
        return filtered(x, kernel, "reflect")


class ZoomBlur(Corruption):
    """The mean of the image and of itself in growing enlargements."""

    # By numpy's arange, as in the authors' code: rounding puts the end into some of the ranges.
    cifar = tuple(tuple(np.arange(1, end, 0.01).tolist()) for end in (1.06, 1.11, 1.16, 1.21, 1.26))
    imagenet = tuple(
        tuple(np.arange(1, end, step).tolist())
        for end, step in ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
    )

    def apply(self, x: Tensor, level: tuple[float, ...], draws: Draws, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level holds the enlargements, from 1 on."""
        total = x.clone()
        for factor in level:
            total += enlarged(x, factor)
        return total / (len(level) + 1)


class Fog(Corruption):
    """A plasma fractal on top, then the contrast back to the image's maximum."""

    cifar = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
    imagenet = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))

    def apply(self, x: Tensor, level: tuple[float, float], draws: Draws, index: Tensor) -> Tensor:
        """The level is the thickness of the fog and how fast its details fade."""
        thickness, decay = level
        height, width = x.shape[-2:]
        fog = plasma(draws, index, 2 ** math.ceil(math.log2(max(height, width, 2))), decay)[:, None, :height, :width]
        most = x.amax((1, 2, 3), keepdim=True)
        return (x + thickness * fog) * most / (most + thickness)


class Contrast(Corruption):
    """Each channel drawn towards its mean over the image."""

    cifar = (0.75, 0.5, 0.4, 0.3, 0.15)
    imagenet = (0.4, 0.3, 0.2, 0.1, 0.05)

    def apply(self, x: Tensor, level: float, draws: Draws, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the share of contrast that is left."""
        mean = x.mean((2, 3), keepdim=True)
        return (x - mean) * level + mean


class Brightness(Corruption):
    """A constant on the largest channel (V of HSV), hue and saturation as they were; on the value itself in grey."""

    cifar = (0.05, 0.1, 0.15, 0.2, 0.3)
    imagenet = (0.1, 0.2, 0.3, 0.4, 0.5)

    def apply(self, x: Tensor, level: float, draws: Draws, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the constant."""
        value = x.amax(1, keepdim=True)
        lighter = (value + level).clamp(max=1)
        return torch.where(value > 0, x * lighter / value.clamp(min=1e-6), lighter)


class Saturate(Corruption):
    """The saturation (S of HSV) times a factor plus a constant, hue and value as they were; grey counts as red."""

    cifar = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))
    imagenet = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))

    def apply(self, x: Tensor, level: tuple[float, float], draws: Draws, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the factor and the constant.

        Raises:
            UserError: for images without three channels.
        """
        if x.shape[1] != 3:
            raise UserError(f"the corruption 'saturate' needs 3 channels, and these images have {x.shape[1]}")
        factor, constant = level
        value = x.amax(1, keepdim=True)
        depth = value - x
        saturation = depth.amax(1, keepdim=True) / value.clamp(min=1e-6)
        wanted = (saturation * factor + constant).clamp(0, 1)
        red = value * torch.tensor([0.0, 1.0, 1.0], device=x.device).view(3, 1, 1)
        full = torch.where(saturation > 0, depth / saturation.clamp(min=1e-6), red)
        return value - full * wanted


class JpegCompression(Corruption):
    """JPEG by Pillow, decoded again."""

    cifar = (80, 65, 58, 50, 40)
    imagenet = (25, 18, 15, 10, 7)

    def apply(self, x: Tensor, level: int, draws: Draws, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is Pillow's quality."""

        def squeezed(picture: Image.Image) -> Image.Image:
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG", quality=level)
            return Image.open(buffer)

        return _each(x, squeezed)


class Pixelate(Corruption):
    """Fewer pixels by the mean of boxes, then as many as before."""

    cifar = (0.95, 0.9, 0.85, 0.75, 0.65)
    imagenet = (0.6, 0.5, 0.4, 0.3, 0.25)

    def apply(self, x: Tensor, level: float, draws: Draws, index: Tensor) -> Tensor:  # noqa: ARG002
        """The level is the share of rows and columns that are left."""

        def coarse(picture: Image.Image) -> Image.Image:
            fewer = (max(1, int(picture.width * level)), max(1, int(picture.height * level)))
            return picture.resize(fewer, Image.Resampling.BOX).resize(picture.size, Image.Resampling.BOX)

        return _each(x, coarse)


def _each(x: Tensor, change: Any) -> Tensor:
    """Pillow's work on each picture, grey or RGB."""
    grey = x.shape[1] == 1
    arrays = x.mul(255).round().byte().cpu().permute(0, 2, 3, 1).numpy()
    pictures = (Image.fromarray(array[..., 0] if grey else array) for array in arrays)
    done = np.stack([np.asarray(change(picture)) for picture in pictures])
    back = torch.from_numpy(done[:, None] if grey else done.transpose(0, 3, 1, 2).copy())
    return to_unit(back.to(x.device))


def _gaussian(deviation: float, reach: int) -> Tensor:
    """A line of 2 reach + 1 weights that add up to 1."""
    place = torch.arange(-reach, reach + 1, dtype=torch.float32)
    line = torch.exp(-0.5 * (place / deviation) ** 2)
    return line / line.sum()


def filtered(x: Tensor, kernel: Tensor, border: str) -> Tensor:
    """Images (N, C, H, W) under one symmetric kernel (2a + 1, 2a + 1), of the same size.

    A reach of more than the images' own size is cut to it where the border is mirrored.
    """
    reach = kernel.shape[0] // 2
    fits = min(x.shape[-2:]) - 1 if border == "reflect" else reach
    if reach > fits:
        kernel = kernel[reach - fits : reach + fits + 1, reach - fits : reach + fits + 1]
        kernel, reach = kernel / kernel.sum(), fits
    padded = F.pad(x, (reach,) * 4, mode=border)
    flat = padded.flatten(0, 1)[:, None]
    return F.conv2d(flat, kernel[None, None].to(x)).view(x.shape)


def blurred(x: Tensor, deviation: float) -> Tensor:
    """Images under a Gaussian filter, cut at four deviations; the edge goes on beyond the border."""
    line = _gaussian(deviation, int(4 * deviation + 0.5)).to(x)
    return filtered(x, line[:, None] * line, "replicate")


def enlarged(x: Tensor, factor: float) -> Tensor:
    """The middle of the images, enlarged to their size: bilinear, corner pixels on corner pixels."""
    sides = x.shape[-2:]
    crops = [math.ceil(side / factor) for side in sides]
    top, left = ((side - crop) // 2 for side, crop in zip(sides, crops, strict=True))
    middle = x[..., top : top + crops[0], left : left + crops[1]]
    sizes = [round(crop * factor) for crop in crops]
    large = F.interpolate(middle, sizes, mode="bilinear", align_corners=True)
    top, left = ((size - side) // 2 for size, side in zip(sizes, sides, strict=True))
    return large[..., top : top + sides[0], left : left + sides[1]]


def plasma(draws: Draws, index: Tensor, side: int, decay: float) -> Tensor:
    """Plasma fractals (N, side, side) in [0, 1] by the diamond-square algorithm on a torus; side is a power of two."""
    sheet = torch.zeros(len(index), side, side, device=index.device)
    step, size, counter = side, 100.0, 0
    while step >= 2:
        half = step // 2
        corners = sheet[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        sheet[:, half::step, half::step] = _wobbled(pairs + pairs.roll(-1, 2), size, draws, index, counter)
        middles = sheet[:, half::step, half::step]
        along = corners + corners.roll(-1, 2)
        across = middles + middles.roll(1, 1)
        sheet[:, ::step, half::step] = _wobbled(along + across, size, draws, index, counter + 1)
        along, across = corners + corners.roll(-1, 1), middles + middles.roll(1, 2)
        sheet[:, half::step, ::step] = _wobbled(along + across, size, draws, index, counter + 2)
        step, size, counter = half, size / decay, counter + 3
    sheet -= sheet.amin((1, 2), keepdim=True)
    return sheet / sheet.amax((1, 2), keepdim=True)


def _wobbled(total: Tensor, size: float, draws: Draws, index: Tensor, counter: int) -> Tensor:
    """The mean of four neighbours plus uniform noise of ``size`` squared, as the authors' code has it."""
    return total / 4 + size * size * (2 * draws.uniform(index, total.shape[1:], counter) - 1)
