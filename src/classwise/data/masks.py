"""Object masks: GrabCut of OpenCV, a segmentation similar to it without OpenCV, and quality measures of masks."""

from __future__ import annotations

import importlib.util
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Count, NonNegative, Seed, configurable
from classwise.data.images import Images

INSTALL = "pip install -c constraints.txt -e '.[masks]'"
_BATCH = 256
_FLOOR = (4 / 255) ** 2
"""Added to every variance, since differences of a few levels are noise."""


@configurable
class GrabCut:
    """Segmentation of objects in the centre of their images, similar to GrabCut, without OpenCV.

    As in Rother, Kolmogorov and Blake (2004), pixels outside a rectangle are background, foreground and background
    colours are Gaussian mixtures, and neighbours of similar colour tend to have the same label. Unlike there, the
    labels are computed by mean-field updates instead of a minimum cut, for a batch of images at once, so the masks are
    similar but not equal to those of `OpenCVGrabCut`.

    Attributes:
        inset: distance of the rectangle from the border, in pixels (KDD 2021's rows: 2).
        iterations: number of alternating updates of mixtures and labels.
        components: number of Gaussians per mixture.
        smoothness: weight of the neighbours.
        updates: number of mean-field updates per iteration.
    """

    inset: Count = 2
    iterations: Count = 5
    components: Count = 4
    smoothness: NonNegative = 2.0
    updates: Count = 10

    def __call__(self, images: Images) -> Tensor:
        """Compute one mask per image, bool (N, H, W), true on the object, on the CPU.

        Raises:
            ClasswiseError: if the rectangle is empty.
        """
        _check_rectangle(images, self.inset)
        return torch.cat([self._masks(batch.x) for batch in images.batches(_BATCH)]).cpu()

    def _masks(self, x: Tensor) -> Tensor:
        count, _, height, width = x.shape
        inside = torch.zeros(height, width, device=x.device)
        inside[self.inset : height - self.inset, self.inset : width - self.inset] = 1
        colours = x.flatten(2).transpose(1, 2)  # (N, P, C)
        object_ = inside.flatten().expand(count, -1).clone()
        links = _links(x)
        shares = [_by_lightness(colours, side, self.components) for side in (object_, 1 - object_)]
        for _ in range(self.iterations):
            scores = []
            for number, side in enumerate((object_, 1 - object_)):
                score, shares[number] = _mixture(colours, side, shares[number])
                scores.append(score)
            odds = (scores[0] - scores[1]).view(count, height, width)
            object_ = torch.sigmoid(odds) * inside
            for _ in range(self.updates):
                object_ = torch.sigmoid(odds + self.smoothness * _pull(2 * object_ - 1, links)) * inside
            object_ = object_.flatten(1)
        return object_.view(count, height, width) > 0.5


def _by_lightness(colours: Tensor, side: Tensor, components: int) -> Tensor:
    """Initial responsibilities (N, P, K): the pixels of one side in K equal parts by lightness."""
    order = colours.mean(2).argsort(1)
    rank = torch.gather(side, 1, order).cumsum(1)
    part = ((rank - 0.5) / rank[:, -1:] * components).long().clamp(0, components - 1)
    component = torch.empty_like(part).scatter_(1, order, part)
    return torch.nn.functional.one_hot(component, components).float()


def _mixture(colours: Tensor, side: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """One step of expectation maximisation: the log density (N, P) of a side's mixture, and new responsibilities."""
    weights = shares * side[..., None] + 1e-6
    mass = weights.sum(1)  # (N, K)
    means = torch.einsum("npk,npc->nkc", weights, colours) / mass[..., None]
    centred = colours[:, None] - means[:, :, None]  # (N, K, P, C)
    covariance = torch.einsum("npk,nkpc,nkpd->nkcd", weights, centred, centred) / mass[..., None, None]
    root = torch.linalg.cholesky(covariance + _FLOOR * torch.eye(colours.shape[2], device=colours.device))
    whitened = torch.linalg.solve_triangular(root, centred.transpose(2, 3), upper=False)
    volume = root.diagonal(dim1=2, dim2=3).log().sum(2)
    log_mass = (mass / mass.sum(1, keepdim=True)).log()
    scores = (log_mass - volume)[..., None] - 0.5 * whitened.square().sum(2)  # (N, K, P)
    scores = scores - 0.5 * colours.shape[2] * math.log(2 * math.pi)
    return scores.logsumexp(1), scores.softmax(1).transpose(1, 2)


_STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""Half of the eight neighbours; the others are in the opposite directions."""


def _links(x: Tensor) -> list[Tensor]:
    """For each direction, the similarity (N, H, W) of every pixel and its neighbour; 0 beyond the border."""
    gaps = [(x - _moved(x, step)).square().sum(1) * _moved(torch.ones_like(x[:, 0]), step) for step in _STEPS]
    scale = 2 * torch.stack(gaps).mean((0, 2, 3)).clamp(min=_FLOOR)[:, None, None]
    here = torch.ones_like(gaps[0])
    return [
        torch.exp(-gap / scale) * _moved(here, step) / math.hypot(*step) for gap, step in zip(gaps, _STEPS, strict=True)
    ]


def _pull(sides: Tensor, links: list[Tensor]) -> Tensor:
    """Sum of the neighbours' labels (-1 to 1) of each pixel, weighted by similarity."""
    total = torch.zeros_like(sides)
    for (down, right), link in zip(_STEPS, links, strict=True):
        total += link * _moved(sides, (down, right)) + _moved(link * sides, (-down, -right))
    return total


def _moved(x: Tensor, step: tuple[int, int]) -> Tensor:
    """The values shifted by ``step``, the offset (down, right) of the source pixel; 0 beyond the border."""
    down, right = step
    height, width = x.shape[-2:]
    result = torch.zeros_like(x)
    rows = slice(max(0, -down), height - max(0, down)), slice(max(0, down), height - max(0, -down))
    lines = slice(max(0, -right), width - max(0, right)), slice(max(0, right), width - max(0, -right))
    result[..., rows[0], lines[0]] = x[..., rows[1], lines[1]]
    return result


@configurable
class OpenCVGrabCut:
    """GrabCut of OpenCV (Rother, Kolmogorov and Blake 2004), which needs the extra ``masks``.

    Pixels outside a rectangle are background, and all others are foreground at first. OpenCV's weight of the neighbours
    suits photographs of hundreds of pixels; at 32 pixels the cheapest cut is an empty mask for most images. Smaller
    images are therefore enlarged, and their masks reduced. The mask of an image depends on this image alone: the random
    numbers of OpenCV are seeded for each.

    Attributes:
        inset: distance of the rectangle from the border, in pixels of the image (KDD 2021's rows: 2).
        iterations: number of alternating updates of mixtures and labels.
        size: images whose shorter side is smaller are enlarged by the least integer factor to at least this size.
        seed: seed of the initial mixtures.
    """

    inset: Count = 2
    iterations: Count = 5
    size: Count = 256
    seed: Seed = 0

    def __call__(self, images: Images) -> Tensor:
        """Compute one mask per image, bool (N, H, W), true on the object, on the CPU.

        Raises:
            ClasswiseError: if OpenCV is not installed, the rectangle is empty, or the images have neither one nor three
                channels.
        """
        try:
            import cv2
        except ImportError as error:
            raise ClasswiseError(f"OpenCV is not installed; run in the clone of classwise: {INSTALL}") from error
        channels, height, width = images.shape
        if channels not in (1, 3):
            raise ClasswiseError(f"images have {channels} channels; GrabCut needs 1 or 3")
        _check_rectangle(images, self.inset)
        factor = math.ceil(self.size / min(height, width))
        rectangle = tuple(
            factor * end for end in (self.inset, self.inset, width - 2 * self.inset, height - 2 * self.inset)
        )
        masks = []
        for batch in images.batches(_BATCH):
            levels = (255 * batch.x).round().byte().expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()
            for picture in levels:
                large = cv2.resize(
                    np.ascontiguousarray(picture), None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC
                )
                labels = np.zeros(large.shape[:2], dtype=np.uint8)
                mixtures = np.zeros((1, 65)), np.zeros((1, 65))  # OpenCV's format of five Gaussians
                cv2.setRNGSeed(self.seed)
                cv2.grabCut(large, labels, rectangle, *mixtures, self.iterations, cv2.GC_INIT_WITH_RECT)
                inside = np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)).astype(np.float32)
                masks.append(cv2.resize(inside, (width, height), interpolation=cv2.INTER_AREA) > 0.5)
        return torch.from_numpy(np.stack(masks))


def has_opencv() -> bool:
    """Whether OpenCV is installed."""
    return importlib.util.find_spec("cv2") is not None


def _check_rectangle(images: Images, inset: int) -> None:
    """Check that the rectangle contains a pixel.

    Raises:
        ClasswiseError: if it is empty.
    """
    _, height, width = images.shape
    if min(height, width) <= 2 * inset:
        limit = (min(height, width) - 1) // 2
        raise ClasswiseError(f"inset = {inset}: must be at most {limit} for images of {width}x{height}")


@checked
def background_brightness(images: Images, masks: Tensor) -> Tensor:
    """Mean brightness of the background of each image, over the pixels outside its mask and the channels.

    Args:
        images: any data set.
        masks: one mask per image, bool (N, H, W), true on the object.

    Returns:
        Brightness in [0, 1], float64 (N,), on the CPU; NaN if the mask covers the whole image.

    Raises:
        ClasswiseError: if the masks have another shape.
    """
    if masks.shape != (len(images), *images.shape[1:]):
        raise ClasswiseError(
            f"masks of shape {tuple(masks.shape)}, expected {(len(images), *images.shape[1:])}, one per image"
        )
    outside = ~masks.cpu()
    grey = torch.cat([batch.x.double().mean(1).cpu() for batch in images.batches(_BATCH)])
    return (grey * outside).sum((1, 2)) / outside.sum((1, 2))


class MaskQuality(NamedTuple):
    """Quality measures of masks.

    Attributes:
        area: mean fraction of the image that a mask covers.
        empty: fraction of the masks that cover less than 5 % of the image.
        full: fraction of the masks that cover more than 90 % of the rectangle, where segmentation failed.
        overlap: mean intersection over union with the other masks; 1 for two empty masks; None without them.
        agreement: fraction of the pixels with the same label in the other masks; None without them.
    """

    area: float
    empty: float
    full: float
    overlap: float | None
    agreement: float | None


@checked
def mask_quality(masks: Tensor, others: Tensor | None = None, inset: int = 2) -> MaskQuality:
    """Compute quality measures of masks.

    Args:
        masks: bool (N, H, W).
        others: reference masks of the same images, bool (N, H, W).
        inset: distance of the rectangle from the border, in pixels.

    Raises:
        ClasswiseError: if the shapes differ.
    """
    if others is not None and others.shape != masks.shape:
        raise ClasswiseError(f"masks of shapes {tuple(masks.shape)} and {tuple(others.shape)}: must be equal")
    height, width = masks.shape[1:]
    area = masks.double().mean((1, 2))
    most = max(0, height - 2 * inset) * max(0, width - 2 * inset) / (height * width)
    overlap = agreement = None
    if others is not None:
        either = (masks | others).sum((1, 2))
        overlap = float(torch.where(either > 0, (masks & others).sum((1, 2)) / either.clamp(min=1), 1.0).mean())
        agreement = float((masks == others).double().mean())
    empty, full = (float(where.double().mean()) for where in (area < 0.05, area > 0.9 * most))
    return MaskQuality(float(area.mean()), empty, full, overlap, agreement)
