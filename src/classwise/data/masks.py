"""Which pixels show the object: an automatic method in the manner of GrabCut, and how good its masks are."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from classwise.core.config import Count, NonNegative, configurable
from classwise.core.errors import ClasswiseError
from classwise.data.images import Images

_BATCH = 256
_FLOOR = (4 / 255) ** 2
"""What is added to every variance: differences of a few levels are noise."""


@configurable
class GrabCut:
    """Masks of objects that fill the middle of their images.

    As in Rother, Kolmogorov and Blake (2004), pixels outside a rectangle are background; colours inside and outside are
    two Gaussian mixtures; neighbours of like colour like to be on the same side. Unlike there, the sides are found by
    mean-field updates and not by a minimal cut, for all images at once, so that the masks are alike but not the same.

    Attributes:
        inset: how many pixels the rectangle is away from the border (KDD 2021's rows: 2).
        iterations: how often mixtures and sides are found anew.
        components: Gaussians in each mixture.
        smoothness: the weight of neighbours.
        updates: mean-field updates in each iteration.
    """

    inset: Count = 2
    iterations: Count = 5
    components: Count = 4
    smoothness: NonNegative = 2.0
    updates: Count = 10

    def __call__(self, images: Images) -> Tensor:
        """The masks (N, H, W), bool, true on the object, on the CPU.

        Raises:
            ClasswiseError: if the rectangle would be empty.
        """
        _, height, width = images.shape
        if min(height, width) <= 2 * self.inset:
            raise ClasswiseError(
                f"inset = {self.inset} leaves nothing of images of {width}x{height}; give a smaller one"
            )
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
    """Shares (N, P, K) to begin with: the pixels of a side in K equal parts from dark to light."""
    order = colours.mean(2).argsort(1)
    rank = torch.gather(side, 1, order).cumsum(1)
    part = ((rank - 0.5) / rank[:, -1:] * components).long().clamp(0, components - 1)
    place = torch.empty_like(part).scatter_(1, order, part)
    return torch.nn.functional.one_hot(place, components).float()


def _mixture(colours: Tensor, side: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """One step of expectation maximisation: the log density (N, P) of a side's mixture, and the new shares."""
    weights = shares * side[..., None] + 1e-6
    mass = weights.sum(1)  # (N, K)
    means = torch.einsum("npk,npc->nkc", weights, colours) / mass[..., None]
    off = colours[:, None] - means[:, :, None]  # (N, K, P, C)
    spread = torch.einsum("npk,nkpc,nkpd->nkcd", weights, off, off) / mass[..., None, None]
    root = torch.linalg.cholesky(spread + _FLOOR * torch.eye(colours.shape[2], device=colours.device))
    whitened = torch.linalg.solve_triangular(root, off.transpose(2, 3), upper=False)
    volume = root.diagonal(dim1=2, dim2=3).log().sum(2)
    log_mass = (mass / mass.sum(1, keepdim=True)).log()
    scores = (log_mass - volume)[..., None] - 0.5 * whitened.square().sum(2)  # (N, K, P)
    scores = scores - 0.5 * colours.shape[2] * math.log(2 * math.pi)
    return scores.logsumexp(1), scores.softmax(1).transpose(1, 2)


_STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""Half of the eight neighbours; the other half are these seen from the other side."""


def _links(x: Tensor) -> list[Tensor]:
    """For each step the likeness (N, H, W) of every pixel with its neighbour there; 0 beyond the border."""
    gaps = [(x - _moved(x, step)).square().sum(1) * _moved(torch.ones_like(x[:, 0]), step) for step in _STEPS]
    scale = 2 * torch.stack(gaps).mean((0, 2, 3)).clamp(min=_FLOOR)[:, None, None]
    here = torch.ones_like(gaps[0])
    return [
        torch.exp(-gap / scale) * _moved(here, step) / math.hypot(*step) for gap, step in zip(gaps, _STEPS, strict=True)
    ]


def _pull(sides: Tensor, links: list[Tensor]) -> Tensor:
    """What the neighbours (-1 to 1) of each pixel want, by their likeness."""
    total = torch.zeros_like(sides)
    for (down, right), link in zip(_STEPS, links, strict=True):
        total += link * _moved(sides, (down, right)) + _moved(link * sides, (-down, -right))
    return total


def _moved(x: Tensor, step: tuple[int, int]) -> Tensor:
    """The value of the pixel so many steps down and to the right; 0 beyond the border."""
    down, right = step
    height, width = x.shape[-2:]
    result = torch.zeros_like(x)
    rows = slice(max(0, -down), height - max(0, down)), slice(max(0, down), height - max(0, -down))
    lines = slice(max(0, -right), width - max(0, right)), slice(max(0, right), width - max(0, -right))
    result[..., rows[0], lines[0]] = x[..., rows[1], lines[1]]
    return result


def background_brightness(images: Images, masks: Tensor) -> Tensor:
    """How bright the background of each image is: the mean over pixels outside its mask and over channels.

    Args:
        images: any set.
        masks: (N, H, W) bool, true on the object.

    Returns:
        (N,) float64 in [0, 1], on the CPU; NaN where a mask leaves no background.

    Raises:
        ClasswiseError: if the masks have another shape.
    """
    if masks.shape != (len(images), *images.shape[1:]):
        raise ClasswiseError(
            f"masks {tuple(masks.shape)} should be {(len(images), *images.shape[1:])}, one for each image"
        )
    outside = ~masks.cpu()
    grey = torch.cat([batch.x.double().mean(1).cpu() for batch in images.batches(_BATCH)])
    return (grey * outside).sum((1, 2)) / outside.sum((1, 2))


class MaskQuality(NamedTuple):
    """How far masks can be trusted.

    Attributes:
        area: the mean share of the image that they cover.
        empty: the share of masks that cover less than a twentieth of the image.
        full: the share that covers more than nine tenths of what the rectangle allows, where nothing was told apart.
        overlap: the mean of intersection over union with masks made otherwise; None without such.
    """

    area: float
    empty: float
    full: float
    overlap: float | None


def mask_quality(masks: Tensor, others: Tensor | None = None, inset: int = 2) -> MaskQuality:
    """Measure masks (N, H, W), bool, alone and against others of the same images.

    Raises:
        ClasswiseError: if the others have another shape.
    """
    if others is not None and others.shape != masks.shape:
        raise ClasswiseError(
            f"masks of shapes {tuple(masks.shape)} and {tuple(others.shape)} are not of the same images"
        )
    height, width = masks.shape[1:]
    area = masks.double().mean((1, 2))
    most = max(0, height - 2 * inset) * max(0, width - 2 * inset) / (height * width)
    overlap = None
    if others is not None:
        union = (masks | others).sum((1, 2)).clamp(min=1)
        overlap = float(((masks & others).sum((1, 2)) / union).mean())
    return MaskQuality(
        float(area.mean()), float((area < 0.05).double().mean()), float((area > 0.9 * most).double().mean()), overlap
    )
