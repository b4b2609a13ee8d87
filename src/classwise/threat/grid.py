"""The 8-bit grid: images whose values are multiples of 1/255, which a file with 8 bits per channel stores exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.threat.ball import Threat

LEVELS = 255
"""Largest level of the grid; level n is the value n/255."""
TOLERANCE = 1e-6
"""Largest distance of a clean image from the grid. Half of it is added to a radius, for radii such as 8/255."""


def levels_of(x: Tensor) -> Tensor:
    """The nearest levels of values in [0, 1], whole numbers of the type of ``x``."""
    return (LEVELS * x).round_()


def from_levels(levels: Tensor) -> Tensor:
    """The values n/255, with the bits of a stored image that is read again (`classwise.data.images.to_unit`)."""
    return levels / levels.new_full((), LEVELS)  # a Python number would be a multiplication by 1/255 on a GPU


def snapped(x: Tensor, name: str) -> Tensor:
    """Clean images with their rounding errors removed, so that they are on the grid exactly.

    Args:
        x: images in [0, 1], (N, ...).
        name: of the data, for the error.

    Raises:
        ClasswiseError: if a value is further than `TOLERANCE` from the grid.
    """
    exact = from_levels(levels_of(x))
    away = (x - exact).abs()
    if away.numel() and float(away.max()) > TOLERANCE:
        value = float(x.flatten()[away.argmax()])
        raise ClasswiseError(
            f"grid '8bit': the images of {name or 'the data'} are not stored with 8 bits: a pixel is {value:.6g}, "
            f"{255 * value:.3f} levels of 1/255; give uint8 images, or multiples of 1/255"
        )
    return exact


def rounded(x: Tensor, x0: Tensor, threat: Threat) -> Tensor:
    """Images rounded to the grid, in the ball around clean images that are on the grid.

    - Linf and recolouring: the nearest level within the radius. A function of the clean values remains one.
    - L2 and L1: the shift of every pixel is rounded toward zero, which never leaves the ball; then the pixels nearest
      to their next level are rounded to it, in that order, as long as the ball allows it. The result is the nearest
      point of the grid if that is in the ball.
    - Spatial threats, which are no balls: the nearest levels, so the stored image of an allowed transformation.

    Args:
        x: images in [0, 1] and in the ball, (N, ...).
        x0: clean images on the grid, (N, ...).
        threat: the ball; its radius is a number or (N,).

    Returns:
        Images on the grid, shaped like ``x``; images on the grid are returned unchanged.

    Example:
        >>> import torch
        >>> clean = torch.full((1, 1, 1, 2), 100 / 255)
        >>> attacked = torch.tensor([108.4, 91.6]).div(255).view(1, 1, 1, 2)
        >>> (255 * rounded(attacked, clean, Threat("Linf", 8 / 255))).flatten().tolist()
        [108.0, 92.0]
    """
    clean = levels_of(x0)
    if threat.norm == "spatial":
        return from_levels(levels_of(x))
    radius = threat.radius(x0)
    limit = LEVELS * (radius + TOLERANCE / 2 * radius.clamp_min(1))
    if threat.norm in ("Linf", "recolour"):
        most = limit.floor()
        return from_levels(levels_of(x).minimum(clean + most).maximum(clean - most))
    shift = (LEVELS * x - clean).flatten(1)
    length = shift.abs().floor()
    part = shift.abs() - length
    # In levels, the sum of the powers of the lengths is an integer, so it is computed without rounding errors.
    squared = threat.norm == "L2"
    spent, budget = (length.square() if squared else length).long().sum(1, keepdim=True), limit.flatten(1)
    cost = (2 * length + 1 if squared else torch.ones_like(length)).long()
    order = part.argsort(dim=1, descending=True, stable=True)
    total = spent + cost.gather(1, order).cumsum(1)
    fits = (total <= (budget.square() if squared else budget)) & (part.gather(1, order) >= 0.5)
    length = length + torch.zeros_like(length).scatter_(1, order, fits.to(length.dtype))
    return from_levels(clean + (shift.sign() * length).view_as(clean))
