"""The nearest point of a hyperplane that is still an image: what FAB solves for in every step, all rows at once."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.core.threat import Norm

_ROUNDS = 20


def toward(point: Tensor, normal: Tensor, value: Tensor, norm: Norm) -> Tensor:
    """The shortest shift d with value + normal · d = 0 and 0 ≤ point + d ≤ 1.

    Where the box does not meet the hyperplane, the shift goes as near to it as the box lets it. A coordinate whose
    normal is zero does not move. Croce and Hein, ICML 2020, eq. 3 to 5.

    Args:
        point: points in [0, 1], (N, D).
        normal: the hyperplane's normal, (N, D).
        value: the affine function at the point, (N,); its zeros are the hyperplane.
        norm: what is to be short: ``"Linf"`` or ``"L2"``.

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
    """The t ≥ 0 at which sum_i rate_i min(t, knee_i) is what is needed, (N, 1); infinite where it never is.

    The sum is concave and piecewise linear in t, so Newton's steps from 0 stay below the answer and end on its piece.
    Each step divides (what is missing) times (the slope) by at least 4, so the number of rounds can be fixed. A row
    that has arrived stays where it is, so it does not matter for how long others are on their way.
    """
    level = torch.zeros_like(need)
    for _ in range(_ROUNDS):
        missing = need - torch.linalg.vecdot(rate, torch.minimum(level[:, None], knee))
        slope = torch.linalg.vecdot(rate, (knee > level[:, None]).to(rate.dtype))
        higher = torch.where(slope > 0, level + missing / slope, torch.inf)
        before, level = level, torch.where(missing > 0, higher, level)
        if level.device.type == "cpu" and torch.equal(before, level):  # elsewhere a look would wait for the device
            break
    return level[:, None]
