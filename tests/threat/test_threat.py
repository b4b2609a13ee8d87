"""Threats: projections compared with a general solver, random starts in the ball, and parsing."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.threat.ball import Norm, Threat
from tests.refusals import check_refused

minimize: Any = scipy.optimize.minimize  # its stubs want more than a sketch of a function
NORMS: tuple[Norm, ...] = ("Linf", "L2", "L1")


def images(seed: int, count: int = 4, side: int = 3) -> tuple[Tensor, Tensor]:
    rng, index = CounterRNG(seed, "images"), torch.arange(count)
    x0 = rng.uniform(index, (2, side, side))
    return x0, x0 + rng.child("shift").normal(index, (2, side, side))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(3))
def test_projection_is_the_nearest_point_that_a_general_solver_finds(norm: Norm, seed: int) -> None:
    x0, x = images(seed, count=1)
    epsilon = {"Linf": 0.2, "L2": 0.7, "L1": 1.5}[norm]
    ours = Threat(norm, epsilon).project(x, x0).double().flatten().numpy()
    start, goal = x0.double().flatten().numpy(), x.double().flatten().numpy()
    size = len(goal)
    if norm == "Linf":
        best = np.clip(np.clip(goal, start - epsilon, start + epsilon), 0, 1)
    elif norm == "L2":
        rule = {"type": "ineq", "fun": lambda p: epsilon**2 - ((p - start) ** 2).sum()}
        best = minimize(
            lambda p: ((p - goal) ** 2).sum(), start, method="SLSQP", bounds=[(0, 1)] * size, constraints=[rule],
            options={"ftol": 1e-14, "maxiter": 500},
        ).x  # fmt: skip
    else:  # p = start + up - down, with up, down >= 0 and their sum at most epsilon
        rule = {"type": "ineq", "fun": lambda v: epsilon - v.sum()}
        bounds = [*((0, 1 - s) for s in start), *((0, s) for s in start)]
        found = minimize(
            lambda v: ((start + v[:size] - v[size:] - goal) ** 2).sum(), np.zeros(2 * size), method="SLSQP",
            bounds=bounds, constraints=[rule], options={"ftol": 1e-14, "maxiter": 500},
        ).x  # fmt: skip
        best = start + found[:size] - found[size:]
    assert np.abs(ours - best).max() < 2e-4


@given(
    norm=st.sampled_from(NORMS),
    seed=st.integers(0, 1000),
    radii=st.lists(st.floats(0, 3), min_size=4, max_size=4),
)
def test_projection_is_feasible_and_idempotent(norm: Norm, seed: int, radii: list[float]) -> None:
    x0, x = images(seed)
    threat = Threat(norm, torch.tensor(radii))
    point = threat.project(x, x0)
    assert bool((threat.distance(point, x0) <= torch.tensor(radii) + 1e-5).all())
    assert 0 <= float(point.min()) <= float(point.max()) <= 1
    assert torch.allclose(threat.project(point, x0), point, atol=1e-5)
    assert torch.equal(point[torch.tensor(radii) == 0], x0[torch.tensor(radii) == 0])


@pytest.mark.parametrize("norm", NORMS)
def test_each_row_is_projected_into_its_own_ball(norm: Norm) -> None:
    x0, x = images(7)
    radii = torch.tensor([0.1, 0.5, 1.0, 0.0])
    mixed = Threat(norm, radii).project(x, x0)
    for row, radius in enumerate(radii.tolist()):
        single = Threat(norm, radius).project(x[row : row + 1], x0[row : row + 1])
        assert torch.allclose(mixed[row], single[0], atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_the_steepest_direction_has_unit_norm_and_the_largest_inner_product(norm: Norm) -> None:
    gradient = images(3)[1]
    direction = Threat(norm, 1.0).steepest(gradient, gradient)
    assert torch.allclose(Threat(norm, 1.0).distance(direction, torch.zeros_like(direction)), torch.ones(4), atol=1e-5)
    if norm != "L1":  # the field's L1 step is the normalised gradient, not the steepest one
        gain = (direction * gradient).flatten(1).sum(1)
        dual = gradient.flatten(1).abs().sum(1) if norm == "Linf" else gradient.flatten(1).norm(dim=1)
        assert torch.allclose(gain, dual, rtol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_uniform_starts_fill_the_ball(norm: Norm) -> None:
    """In D dimensions a uniform point is within r of the centre with probability (r / eps)^D."""
    count, epsilon = 4000, 0.1
    x0 = torch.full((count, 1, 2, 2), 0.5)
    start = Threat(norm, epsilon).uniform(x0, torch.arange(count), CounterRNG(0, "start"))
    share = float((Threat(norm, epsilon).distance(start, x0) <= 0.9 * epsilon).float().mean())
    assert share == pytest.approx(0.9**4, abs=0.03)
    assert abs(float((start - x0).mean())) < 1e-3


@pytest.mark.parametrize(
    ("text", "norm", "epsilon"),
    [("Linf:8/255", "Linf", 8 / 255), ("linf:0.3", "Linf", 0.3), ("L2:0.5", "L2", 0.5), ("cifar10-l1", "L1", 12)],
)
def test_specs_are_parsed(text: str, norm: str, epsilon: float) -> None:
    assert Threat.parse(text) == Threat(norm, epsilon)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["Linf:0.1", "Linf:8/255", "L2:0.123", "Linf:0.031", "Linf:8", "Linf:1.5"])
def test_str_is_parsed_back(text: str) -> None:
    threat = Threat.parse(text)
    if not isinstance(threat.epsilon, Tensor) and threat.epsilon > 1:
        assert str(threat) == text  # not 2040/255
    again = Threat.parse(str(threat))
    assert again.norm == threat.norm
    assert isinstance(again.epsilon, float)
    assert isinstance(threat.epsilon, float)
    assert math.isclose(again.epsilon, threat.epsilon, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Linf:-1", "epsilon = -1.0"),
        ("Linf:-1", "from 0 to 1,000,000"),
        ("L2:1e308", "from 0 to 1,000,000"),
        ("Linf:much", "threat 'Linf:much': radius must be a number such as 8/255"),
        ("L3:1", "unknown norm 'L3'"),
        ("cifar1", "did you mean 'cifar10'"),
        ("cifar10-l3", "did you mean 'cifar10-l2'"),
        ("Linf:inf", "radius must be a number such as 8/255"),
        ("linf", "threat 'linf' has no radius; give one, such as Linf:8/255"),
        ("spatial", "threat 'spatial' has no radius; give one, such as spatial:1"),
        ("spatial:30", "threat spatial:30: the radius is a factor of 30 degrees"),
    ],
)
def test_invalid_specs_are_refused_in_one_line(text: str, says: str) -> None:
    check_refused(re.escape(says), Threat.parse, text)


@pytest.mark.parametrize("pair", [("Linf", 8 / 255), ["linf", 8 / 255], ("Linf", np.float64(8 / 255)), ("L2", 1)])
def test_pairs_are_read(pair: Any) -> None:
    assert Threat.parse(pair) == Threat.parse(f"{pair[0]}:{float(pair[1])!r}")


@pytest.mark.parametrize(
    "pair", [("Linf",), ("Linf", "x"), ("Linf", True), ("Linf", -1), ("Lin", 1), (1, "Linf"), ("Linf", 1, 2)]
)
def test_wrong_pairs_are_refused(pair: Any) -> None:
    check_refused(r"must be|unknown norm 'Lin'; did you mean", Threat.parse, pair)


def test_other_types_are_refused() -> None:
    check_refused("threat = 8: must be text such as 'Linf:8/255'", Threat.parse, 8)
    check_refused(r"for text use Threat.parse\('Linf:8/255'\)", Threat, "Linf", "8/255")
    check_refused("epsilon = None: radius must be a number from 0", Threat, "Linf", None)
    assert Threat("L2", np.float32(0.5)).with_epsilon(1).epsilon == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [torch.tensor([2, 0, 2]), torch.tensor([True, False, True]), slice(2)])
def test_rows_of_a_threat_have_their_own_radii(rows: Tensor | slice) -> None:
    radii = torch.tensor([0.1, 0.2, 0.3])
    assert torch.equal(torch.as_tensor(Threat("L2", radii).of(rows).epsilon), radii[rows])
    assert Threat("L2", 0.5).of(rows) == Threat("L2", 0.5)
