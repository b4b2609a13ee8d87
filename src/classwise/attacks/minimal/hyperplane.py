"""Batched projection onto the intersection of a hyperplane and [0, 1], as required in every step of FAB."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.threat.ball import Norm

_ROUNDS = 20
_ROUNDS_ON_A_GPU = 12


def shift_onto(point: Tensor, normal: Tensor, value: Tensor, norm: Norm) -> Tensor:
    """The shift d of minimal norm with value + normal · d = 0 and 0 ≤ point + d ≤ 1.

    If the hyperplane does not intersect the box, the shift ends at the point of the box nearest to the hyperplane. A
    coordinate with a zero normal does not move. Croce and Hein, ICML 2020, eq. 3 to 5.

    Args:
        point: points in [0, 1], (N, D).
        normal: normal of the hyperplane, (N, D).
        value: value at the point of the affine function whose zeros are the hyperplane, (N,).
        norm: the norm to minimise, ``"Linf"`` or ``"L2"``.

    Returns:
        The shift, (N, D).
    """
    scale = normal.abs().amax(1, keepdim=True).clamp_min(torch.finfo(normal.dtype).tiny)
    uphill = normal / scale * -value.sign()[:, None]
    size = uphill.abs()
    room = torch.where(uphill > 0, 1 - point, point).clamp_min(0)
    need = value.abs() / scale.squeeze(1)
    if norm == "Linf":
        return uphill.sign() * torch.minimum(_level(size, room, need), room)
    knee = torch.where(size > 0, room / size.clamp_min(torch.finfo(size.dtype).tiny), 0)
    return uphill * torch.minimum(_level(size.square(), knee, need), knee)


def _level(rate: Tensor, knee: Tensor, need: Tensor) -> Tensor:
    """The t ≥ 0 with sum_i rate_i min(t, knee_i) = need, (N, 1); infinite if there is none.

    The sum is concave and piecewise linear in t, so Newton's method from 0 approaches the solution from below and ends
    on its linear piece. Each step divides (residual times slope) by at least 4, so a fixed number of rounds suffices. A
    converged row no longer changes, so its result does not depend on the other rows.
    """
    if need.device.type == "cuda":
        return _level_in_few_launches(rate, knee, need)
    level = torch.zeros_like(need)
    for _ in range(_ROUNDS):
        missing = need - torch.linalg.vecdot(rate, torch.minimum(level[:, None], knee))
        slope = torch.linalg.vecdot(rate, (knee > level[:, None]).to(rate.dtype))
        higher = torch.where(slope > 0, level + missing / slope, torch.inf)
        before, level = level, torch.where(missing > 0, higher, level)
        if torch.equal(before, level):
            break
    return level[:, None]


def _level_in_few_launches(rate: Tensor, knee: Tensor, need: Tensor) -> Tensor:
    """The same with six kernels in a round and no synchronisation.

    The sum is ``constant + slope t`` on the linear piece at t. Rows of attacks converge in about 6 rounds, constructed
    ones with 50,000 coordinates in 11. A division of 0 by 0 is NaN, which `torch.fmax` ignores.
    """
    zero = torch.zeros_like(rate)
    below, above = torch.stack([zero, rate]), torch.stack([rate * knee, zero])
    level = torch.zeros_like(need)
    for _ in range(_ROUNDS_ON_A_GPU):
        constant, slope = torch.where(level[:, None] < knee, below, above).sum(-1)
        level = torch.fmax(level, (need - constant) / slope)
    return level[:, None]
