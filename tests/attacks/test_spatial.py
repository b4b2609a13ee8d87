"""Rotation and translation: the transformation by hand, the grid and the gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.engine import AttackInputs
from classwise.attacks.gradient.spatial import SpatialGrid, SpatialPGD, _sampled, transformed
from classwise.attacks.losses import margin
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from tests.refusals import check_refused

from ..pretend_cuda import PretendCuda
from .models import Small, images, labelled


def moved(x: Tensor, *coordinates: float) -> Tensor:
    return transformed(x, torch.tensor([coordinates] * len(x)))


@pytest.fixture
def x() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_no_transformation_is_the_image_bit_for_bit(x: Tensor) -> None:
    assert torch.equal(moved(x, 0.0, 0.0, -0.0), x)


def test_radius_3_rotates_by_90_degrees_counter_clockwise(x: Tensor) -> None:
    assert torch.allclose(moved(x, 3.0, 0.0, 0.0), torch.rot90(x, 1, (2, 3)), atol=1e-5)


@pytest.mark.parametrize(("right", "down"), [(1, 0), (0, -1), (-1, 1 / 3)])
def test_radius_1_translates_3_of_32_pixels_with_black_behind(x: Tensor, right: float, down: float) -> None:
    columns, lines = round(3 * right), round(3 * down)
    wanted = torch.roll(x, (lines, columns), (2, 3))
    wanted[..., range(columns) if columns > 0 else range(32 + columns, 32)] = 0
    wanted[:, :, range(lines) if lines > 0 else range(32 + lines, 32)] = 0
    assert torch.allclose(moved(x, 0.0, right, down), wanted, atol=1e-4)


def test_images_that_are_not_square_rotate_in_pixels(x: Tensor) -> None:
    """Half a turn, and a quarter of a turn of the central square."""
    wide = torch.nn.functional.pad(x[..., 8:24, :], (0, 0))
    assert torch.allclose(moved(wide, 6.0, 0.0, 0.0), wide.flip((2, 3)), atol=1e-4)
    turned = moved(wide, 3.0, 0.0, 0.0)
    assert torch.allclose(turned[..., 8:24], torch.rot90(wide[..., 8:24], 1, (2, 3)), atol=1e-4)
    assert float(turned[..., :8].abs().max()) < 1e-4
    shifted = moved(wide, 0.0, 0.0, 2 / 3)  # an eighth of the pixels of 3/32 of the height
    assert torch.allclose(shifted[:, :, 1:], wide[:, :, :-1], atol=1e-4)


def test_an_image_is_rotated_before_it_is_translated(x: Tensor) -> None:
    assert torch.allclose(moved(x, 3.0, 1.0, 0.0), moved(moved(x, 3.0, 0.0, 0.0), 0.0, 1.0, 0.0), atol=1e-4)


def points(attack: SpatialGrid, radius: float, count: int) -> tuple[list[Tensor], AttackInputs]:
    """The images that the attack evaluates for one image."""
    inputs = AttackInputs(images(2), torch.zeros(2).long(), torch.arange(2), Threat("spatial", radius), CounterRNG(0))
    state, seen = attack.start(Small(), inputs), []
    for _ in range(count):
        state = attack.step(Small(), inputs, state)
        seen.append(state["seen"])
    assert bool(state["done"].all())
    return seen, inputs


def test_the_grid_is_complete_and_begins_at_its_ends() -> None:
    attack = SpatialGrid(rotations=3, translations=3)
    assert attack.length == 27
    seen, inputs = points(attack, 0.5, 27)
    levels = (-0.5, 0.0, 0.5)
    every = [moved(inputs.x, *place) for place in itertools.product(levels, repeat=3)]
    for wanted in every:
        assert any(torch.allclose(point, wanted, atol=1e-6) for point in seen)
    assert torch.allclose(seen[0], moved(inputs.x, -0.5, -0.5, -0.5))
    assert torch.allclose(seen[-1], inputs.x)


def test_random_transformations_are_within_the_radius_and_differ() -> None:
    attack = SpatialGrid(samples=10)
    inputs = AttackInputs(images(), torch.zeros(12).long(), torch.arange(12), Threat("spatial", 1), CounterRNG(0))
    drawn = torch.stack([attack._coordinates(inputs, torch.full((12,), step)) for step in range(10)])
    assert attack.length == 10
    assert -1 <= float(drawn.min()) < -0.9 < 0.9 < float(drawn.max()) <= 1
    assert len({tuple(place) for place in drawn.flatten(0, 1).tolist()}) == 120


def test_the_grid_returns_the_image_of_lowest_margin() -> None:
    model, x, y = labelled(Small().eval(), images())
    attack = SpatialGrid(rotations=5, translations=3)
    result = cw.attack(model, x, y, attack, threat="spatial:1", early_stop=False)
    levels = itertools.product((-1, -0.5, 0, 0.5, 1), (-1, 0, 1), (-1, 0, 1))
    margins = torch.stack([margin(model(moved(x, *map(float, place))), y) for place in levels])
    assert torch.allclose(margin(model(result), y), margins.min(0).values, atol=1e-5)


class Left(nn.Module):
    """Logits -m and m, where m is the mean brightness of the left half minus that of the right half."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.flatten(2).view_as(x).chunk(2, 3)
        difference = left.mean((1, 2, 3)) - right.mean((1, 2, 3))
        return torch.stack([-difference, difference], 1)


def test_the_gradient_finds_the_limit_of_a_translation() -> None:
    """The brightness increases to the right, so the left half is brightest for the largest shift to the left."""
    ramp = torch.linspace(0, 1, 32).square().expand(4, 1, 32, 32).contiguous()
    attack = SpatialPGD(steps=20, objective="margin", random_init="none")
    y, index = torch.zeros(4).long(), torch.arange(4)
    inputs = AttackInputs(ramp, y, index, Threat("spatial", torch.tensor([0.0, 0.25, 0.5, 1.0])), CounterRNG(0))
    state = attack.start(Left(), inputs)
    assert torch.equal(state["x"], ramp)
    for _ in range(20):
        state = attack.step(Left(), inputs, state)
    assert state["coordinates"][:, 1].tolist() == [0, -0.25, -0.5, -1]
    assert torch.equal(state["x"], transformed(ramp, state["coordinates"]))
    after = margin(Left()(state["x"]), y)
    assert bool((after[1:] < after[:-1]).all())


@pytest.mark.parametrize("coordinates", [(0.0, 0.0, 0.0), (0.3, -0.7, 1.0), (-1.0, 1.0, 0.2), (2.0, 5.0, -4.0)])
def test_the_deterministic_interpolation_on_a_gpu(x: Tensor, coordinates: tuple[float, ...]) -> None:
    """Values and gradients with respect to the coordinates are those of torch's, also at the identity."""
    weight, image = torch.rand(2, 3, 20, 32), x[:, :, :20]

    def value_and_gradient(device: str) -> tuple[Tensor, Tensor]:
        leaf = torch.tensor([coordinates] * 2, device=device).requires_grad_()
        value = _sampled(image.to(device), leaf)
        (gradient,) = torch.autograd.grad((value * weight.to(device)).sum(), leaf)
        return value.detach().cpu(), gradient.cpu()

    expected = value_and_gradient("cpu")
    with PretendCuda():
        with deterministic_algorithms():
            found = value_and_gradient("cuda")
        assert torch.equal(value_and_gradient("cuda")[0], expected[0])
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("init", ["uniform", "normal"])
def test_random_starts_are_within_the_radius(init: str) -> None:
    threat = Threat("spatial", torch.tensor([0.0, 0.2] * 6))
    inputs = AttackInputs(images(), torch.zeros(12).long(), torch.arange(12), threat, CounterRNG(0))
    attack = make(ATTACKS, {"name": "spatial-pgd", "random_init": init})
    coordinates = attack.start(Small(), inputs)["coordinates"]
    assert bool((coordinates[::2] == 0).all())
    largest = float(coordinates.abs().max())
    assert (0.15 < largest <= 0.2) if init == "uniform" else (0 < largest < 0.01)


@pytest.mark.parametrize("spec", ["pgd", "apgd-ce", "square", "fab", "external", "transfer"])
def test_attacks_on_pixels_do_not_support_spatial_threats(spec: str) -> None:
    assert "spatial" not in ATTACKS.load(spec).norms
    if spec in ("pgd", "square"):
        check_refused(
            r"(PGD|Square) does not support spatial; it supports Linf",
            cw.attack,
            Small(),
            images(),
            torch.zeros(12).long(),
            spec,
            threat="spatial:1",
        )
    check_refused(
        "SpatialGrid does not support Linf; it supports spatial",
        cw.attack,
        Small(),
        images(),
        torch.zeros(12).long(),
        make(ATTACKS, "spatial-grid"),
        threat="Linf:0.1",
    )
