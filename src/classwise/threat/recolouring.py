"""Recolouring: one function of the colour value for each channel of an image, the same for all of its pixels.

After the functional threat model of Laidlaw and Feizi (NeurIPS 2019), which changes no value by more than a radius.
They map whole colours, and limit functions to a coarse lattice of colours. Here each channel has a function of its own,
of its 256 values, which need not be smooth. Values that are not multiples of 1/255 are grouped by the nearest one.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 256
"""Values of a channel that a function distinguishes."""


def groups(x0: Tensor) -> Tensor:
    """The group of each pixel and channel, int64 (N, C * H * W): its channel and its value, from 0 to 255."""
    levels = (x0 * (LEVELS - 1)).round().long().clamp(0, LEVELS - 1)
    channels = LEVELS * torch.arange(x0.shape[1], device=x0.device)
    return (levels + channels.view(1, -1, *[1] * (x0.ndim - 2))).flatten(1)


def summed(values: Tensor, x0: Tensor) -> Tensor:
    """The sum over each group of an image, at each pixel of the group, shaped like ``values`` (N, C, H, W)."""
    group = groups(x0)
    return _sums(values.flatten(1), group, x0.shape[1]).gather(1, group).view_as(values)


def applied(functions: Tensor, x0: Tensor) -> Tensor:
    """The value of a function at each pixel, shaped like ``x0``; functions are (N, C, `LEVELS`)."""
    return functions.flatten(1).gather(1, groups(x0)).view_as(x0)


def project(x: Tensor, x0: Tensor, radius: Tensor) -> Tensor:
    """Project images to the nearest recolourings of ``x0``, in Euclidean distance.

    The squared distance is a sum over groups, of which each has one shift; so the nearest shift is the mean of the
    group, limited to the radius and to the box [0, 1]. This is exact for images of 8 bits, and else up to half a value.

    Args:
        x: points, (N, C, H, W).
        x0: images in [0, 1], (N, C, H, W).
        radius: the radius, shaped to broadcast over images.
    """
    group, shift = groups(x0), (x - x0).flatten(1)
    counts = _sums(shift.new_ones(shift.shape), group, x0.shape[1]).clamp_min_(1)
    mean = (_sums(shift, group, x0.shape[1]) / counts).gather(1, group).view_as(x0)
    return (x0 + mean.minimum(radius).maximum(-radius)).clamp_(0, 1)


def _sums(values: Tensor, group: Tensor, channels: int) -> Tensor:
    """The sum of the values of each group, (N, channels * LEVELS)."""
    return values.new_zeros(len(values), channels * LEVELS).scatter_add_(1, group, values)
