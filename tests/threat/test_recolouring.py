"""Recolouring: the projection, the direction and random functions, by hand and against a search."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import classwise as cw
from classwise.attacks.gradient.apgd import APGD
from classwise.attacks.gradient.ascent import PGD
from classwise.attacks.losses import margin
from classwise.core.compute.rng import CounterRNG
from classwise.threat import recolouring
from classwise.threat.ball import Threat

from ..attacks.models import Linear, Small, images

VALUES = torch.tensor([[[[10, 10], [20, 250]], [[10, 30], [30, 30]]]]) / 255
"""An image of two channels."""


def is_recolouring(x: Tensor, x0: Tensor) -> bool:
    """Whether equal values of a channel have equal new values, in every image."""
    for new, old in zip(x.flatten(0, 1).flatten(1), x0.flatten(0, 1).flatten(1), strict=True):
        for value in old.unique():
            if float(new[old == value].max() - new[old == value].min()) > 1e-6:
                return False
    return True


def test_a_threat_of_its_own() -> None:
    threat = Threat.parse("Recolour:16/255")
    assert threat == Threat("recolour", 16 / 255)
    assert str(threat) == "recolour:16/255"
    assert threat.distance(VALUES + 0.25, VALUES).tolist() == pytest.approx([0.25])


def test_the_projection_by_hand() -> None:
    """Each value moves by the mean of its shifts: 10 by that of 2 and 4, and 30 by that of 1, 2 and 3."""
    shift = torch.tensor([[[[2, 4], [-20, 9]], [[-7, 1], [2, 3]]]]) / 255
    found = Threat("recolour", 8 / 255).project(VALUES + shift, VALUES)
    wanted = torch.tensor([[[[13, 13], [12, 255]], [[3, 32], [32, 32]]]]) / 255
    assert torch.allclose(found, wanted, atol=1e-6)


def test_the_projection_is_the_nearest_recolouring() -> None:
    """No other recolouring that a search tries is nearer, and the channels do not mix."""
    generator = torch.Generator().manual_seed(0)
    x0 = torch.randint(0, 4, (6, 3, 4, 4), generator=generator) / 255
    x = x0 + 0.1 * torch.randn(6, 3, 4, 4, generator=generator)
    threat = Threat("recolour", torch.linspace(0, 0.1, 6))
    found = threat.project(x, x0)
    assert is_recolouring(found, x0)
    assert bool((threat.distance(found, x0) <= torch.linspace(0, 0.1, 6) + 1e-6).all())
    assert torch.allclose(threat.project(found, x0), found, atol=1e-6)
    nearest = (found - x).square().sum((1, 2, 3))
    for step in range(200):
        functions = 0.02 * CounterRNG(step, "search").normal(torch.arange(6), (3, recolouring.LEVELS))
        other = threat.project(found + recolouring.applied(functions, x0), x0)
        assert bool(((other - x).square().sum((1, 2, 3)) >= nearest - 1e-6).all())


def test_the_steepest_direction_is_the_sign_of_the_sum() -> None:
    gradient = torch.tensor([[[[3.0, -1.0], [0.5, 0.0]], [[-1.0, 5.0], [-3.0, -3.0]]]])
    found = Threat("recolour", 1.0).steepest(gradient, VALUES)
    assert found.tolist() == [[[[1, 1], [1, 0]], [[-1, -1], [-1, -1]]]]


def test_random_functions_are_within_the_radius() -> None:
    x0 = torch.randint(0, 8, (40, 2, 6, 6), generator=torch.Generator().manual_seed(0)) / 255 + 0.5
    threat = Threat("recolour", 0.1)
    first, second = (threat.uniform(x0, torch.arange(40), CounterRNG(0), counter) for counter in (0, 1))
    assert is_recolouring(first, x0)
    assert not torch.equal(first, second)
    assert 0.099 < float((first - x0).abs().max()) <= 0.1 + 1e-6


@pytest.mark.parametrize("attack", [PGD(steps=20), APGD(steps=20)], ids=["pgd", "apgd-ce"])
def test_the_optimum_of_a_linear_model(attack: PGD | APGD) -> None:
    """The margin is linear, so the best function moves each value by the radius along the sum of the weights."""
    model, x0 = Linear(2), 0.3 + torch.randint(0, 5, (32, 2, 3, 3), generator=torch.Generator().manual_seed(0)) / 255
    y, threat = torch.zeros(32, dtype=torch.int64), Threat("recolour", 0.05)
    weights = torch.func.grad(lambda x: margin(model(x), y).sum())(x0)
    best = x0 - 0.05 * recolouring.summed(weights, x0).sign()
    found = cw.attack(model, x0, y, attack, threat=threat, early_stop=False)
    assert is_recolouring(found, x0)
    reached, optimum = margin(model(found), y), margin(model(best), y)
    start = margin(model(x0), y)
    assert bool((start - reached > 0.99 * (start - optimum)).all())


def test_a_recolouring_is_in_the_ball_of_linf_and_weaker() -> None:
    model, x0 = Small().eval().requires_grad_(requires_grad=False), (images(32) * 4).round() / 4
    y = model(x0).argmax(1)
    recoloured, pixelwise = (
        cw.attack(model, x0, y, PGD(steps=10), threat=f"{norm}:0.1", early_stop=False) for norm in ("recolour", "Linf")
    )
    assert float(Threat("Linf", 0.1).distance(recoloured, x0).max()) <= 0.1 + 1e-6
    assert is_recolouring(recoloured, x0)
    assert float(margin(model(recoloured), y).mean()) > float(margin(model(pixelwise), y).mean())
