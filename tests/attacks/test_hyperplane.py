"""FAB's projection against solvers that know nothing of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from torch import Tensor

from classwise.attacks.minimal.hyperplane import _level, _level_in_few_launches, shift_onto
from classwise.threat.ball import Norm


def some(seed: int, rows: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points (some pixels at 0 and 1), normals (some entries 0) and values that the box can often make zero."""
    generator = torch.Generator().manual_seed(seed)
    point = (torch.rand(rows, size, generator=generator, dtype=torch.float64) * 1.4 - 0.2).clamp(0, 1)
    normal = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    normal[torch.rand(rows, size, generator=generator) < 0.1] = 0
    value = torch.randn(rows, generator=generator, dtype=torch.float64) * size**0.5 / 2
    return point, normal, value


def by_linear_programme(point: Tensor, normal: Tensor, value: float) -> float | None:
    """The least Linf norm of a shift onto the hyperplane and inside the box; None if there is none."""
    size = len(point)
    shifts = np.hstack([np.vstack([np.eye(size), -np.eye(size)]), -np.ones((2 * size, 1))])
    found = linprog(
        c=[0.0] * size + [1.0],
        A_ub=shifts,
        b_ub=np.zeros(2 * size),
        A_eq=[[*normal.tolist(), 0.0]],
        b_eq=[-value],
        bounds=[(-p, 1 - p) for p in point.tolist()] + [(0, None)],
    )
    return None if found.fun is None or found.status != 0 else float(found.fun)


def by_multiplier(point: Tensor, normal: Tensor, value: float) -> Tensor | None:
    """The least L2 shift: clip(m normal) for the one multiplier m at which it is on the hyperplane."""

    def shift(multiplier: float) -> Tensor:
        return (multiplier * normal).clamp(-point, 1 - point)

    def left(multiplier: float) -> float:
        return value + float(normal @ shift(multiplier))

    if left(-1e9) * left(1e9) > 0:
        return None
    return shift(brentq(left, -1e9, 1e9, xtol=1e-15, rtol=1e-15, maxiter=500))


@pytest.mark.parametrize("size", [1, 2, 7, 20])
def test_linf_is_as_short_as_a_linear_programme_finds(size: int) -> None:
    point, normal, value = some(size, 12, size)
    shift = shift_onto(point, normal, value, "Linf")
    solved = 0
    for row in range(12):
        least = by_linear_programme(point[row], normal[row], float(value[row]))
        if least is not None:
            solved += 1
            assert abs(float(shift[row].abs().max()) - least) < 1e-6
            assert abs(float(value[row] + normal[row] @ shift[row])) < 1e-9
    assert solved > 3


@pytest.mark.parametrize("size", [1, 2, 7, 200])
def test_l2_is_the_point_that_a_root_finder_finds(size: int) -> None:
    point, normal, value = some(size, 12, size)
    shift = shift_onto(point, normal, value, "L2")
    solved = 0
    for row in range(12):
        nearest = by_multiplier(point[row], normal[row], float(value[row]))
        if nearest is not None:
            solved += 1
            assert float((shift[row] - nearest).abs().max()) < 1e-6
    assert solved > 3


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 3, 50]),
    norm=st.sampled_from(["Linf", "L2"]),
    far=st.booleans(),
)
def test_the_shift_stays_in_the_box_and_reaches_the_hyperplane_or_the_boxs_last_corner(
    seed: int, size: int, norm: Norm, far: bool
) -> None:
    point, normal, value = some(seed, 8, size)
    value = value * (100 if far else 1)
    shift = shift_onto(point, normal, value, norm)
    reached = point + shift
    assert -1e-12 < float(reached.min()) <= float(reached.max()) < 1 + 1e-12
    assert not bool(shift[normal == 0].any())
    left = value + (normal * shift).sum(1)
    downhill = -value.sign()[:, None] * normal
    room = (torch.where(downhill > 0, 1 - point, point) * normal.abs()).sum(1)
    assert torch.allclose(left.abs(), (value.abs() - room).clamp_min(0), atol=1e-9)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_weights_over_many_magnitudes_take_no_more_rounds_than_there_are(norm: Norm) -> None:
    """Newton's worst case: each piece of the sum a hundredth as steep as the one before, every knee on the way."""
    size = 24
    point = torch.full((1, size), 0.5, dtype=torch.float64)
    point[0] = 1 - torch.linspace(0.02, 0.98, size, dtype=torch.float64)
    normal = 100.0 ** -torch.arange(size, dtype=torch.float64)[None]
    room = ((1 - point) * normal).sum(1)
    for share in (0.5, 1 - 1e-4, 1 - 1e-8):
        shift = shift_onto(point, normal, -share * room, norm)
        assert float(((normal * shift).sum(1) - share * room).abs()) < 1e-9 * float(room)


def test_the_answer_does_not_depend_on_the_scale_of_the_gradient() -> None:
    point, normal, value = (tensor.float() for tensor in some(3, 10, 30))
    for norm in ("Linf", "L2"):
        plain = shift_onto(point, normal, value, norm)
        assert torch.allclose(shift_onto(point, normal * 1e-30, value * 1e-30, norm), plain, atol=1e-6)


def test_no_normal_no_shift() -> None:
    point = torch.rand(3, 5)
    for norm in ("Linf", "L2"):
        assert not bool(shift_onto(point, torch.zeros(3, 5), torch.tensor([0.0, 1.0, -1.0]), norm).any())


@pytest.mark.parametrize("size", [1, 7, 3072])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_to_solve_for_the_level_agree(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    rate = torch.rand(40, size, generator=generator, dtype=dtype)
    knee = torch.rand(40, size, generator=generator, dtype=dtype)
    rate[::3] = rate[::3].square().square()  # few large rates
    rate[1::3, ::2] = 0
    knee[2::3] = 10.0 ** torch.randint(-30, 30, (13, size), generator=generator).to(dtype)
    total = (rate * knee).sum(1)
    need = total * torch.rand(40, generator=generator, dtype=dtype)
    need[::8] = 0
    need[4::8] = total[4::8] * 1.5 + 1  # out of reach
    one, other = _level(rate, knee, need), _level_in_few_launches(rate, knee, need)
    assert torch.equal(one.isinf(), other.isinf())
    assert one[4::8].isinf().all()
    assert not other.isnan().any()
    reached = (rate * torch.minimum(other, knee)).sum(1)
    error = (reached - need).abs() / need.clamp_min(torch.finfo(dtype).tiny)
    assert float(error[other.squeeze(1).isfinite() & (need > 0)].max()) < 64 * torch.finfo(dtype).eps
