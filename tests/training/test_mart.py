"""MART against its equation and hand-computed numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from classwise.attacks import ATTACKS
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import TrainingBatch
from classwise.training.objectives.mart import Mart, boosted_cross_entropy
from classwise.training.reductions.base import mean

from ..attacks.models import Linear, images


def test_the_boosted_cross_entropy_by_hand() -> None:
    """p = (0.6, 0.3, 0.1)."""
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log().expand(3, 3)
    expected = [-math.log(0.6) - math.log(0.7), -math.log(0.3) - math.log(0.4), -math.log(0.1) - math.log(0.4)]
    assert torch.allclose(boosted_cross_entropy(logits, torch.arange(3)), torch.tensor(expected))


def test_with_two_classes_it_is_twice_the_cross_entropy() -> None:
    logits, y = torch.randn(8, 2), torch.arange(8) % 2
    twice = 2 * F.cross_entropy(logits, y, reduction="none")
    assert torch.allclose(boosted_cross_entropy(logits, y), twice, atol=1e-6)


def test_it_is_finite_for_a_saturated_softmax() -> None:
    logits = torch.tensor([[500.0, 0.0, -500.0]] * 3, requires_grad=True)
    loss = boosted_cross_entropy(logits, torch.arange(3))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(loss.detach(), torch.tensor([0.0, 1000.0, 1500.0]))
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_mart_equals_its_equation(classes: int) -> None:
    """Also with classes absent from the batch, and with one beta or class-wise betas."""
    model = EXACT.forward(Linear(classes))
    y = torch.tensor([0, 1, 1, 1, 0, 1])
    batch = TrainingBatch(images(6, 2, 3), y, torch.arange(6), Threat("Linf", 0.1))
    attack = Mart().inner(make(ATTACKS, "pgd:steps=3"))
    for settings, beta in ((ClassSettings(), torch.full((6,), 5.0)), (ClassSettings(beta=torch.arange(classes)), y)):
        points = Mart().points(model, batch, attack, settings, CounterRNG(0))
        clean, robust = model(batch.x).softmax(1), model(points["robust"]).softmax(1)
        rows = torch.arange(6)
        rival = robust.clone()
        rival[rows, y] = 0
        boosted = -robust[rows, y].log() - (1 - rival.amax(1)).log()
        divergence = (clean * (clean / robust).log()).sum(1)
        expected = (boosted + beta * divergence * (1 - clean[rows, y])).mean()
        found = mean(Mart().step(model, batch, points, settings), batch, settings)
        assert torch.allclose(found, expected, atol=1e-5)


def test_the_attack_maximises_the_cross_entropy_from_a_small_normal_perturbation() -> None:
    assert Mart().inner(make(ATTACKS, "pgd")) == make(ATTACKS, "pgd:objective=ce,random_init=normal")
