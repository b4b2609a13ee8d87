"""Objectives compared with their formulas in torch functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.core.config import make
from classwise.core.precision import EXACT, Forward
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.training import OBJECTIVES
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import TrainingBatch
from classwise.training.objectives.trades import Trades
from classwise.training.reductions.base import mean

from ..attacks.models import Small, images


@pytest.fixture
def batch() -> TrainingBatch:
    radii = torch.linspace(0.02, 0.1, 12)
    return TrainingBatch(images(), torch.arange(12) % 3, torch.arange(12), Threat("Linf", radii))


@pytest.fixture
def model() -> Forward:
    return EXACT.forward(Small().eval())


def worked(name: str, model: Forward, batch: TrainingBatch, settings: ClassSettings) -> tuple[Any, dict[str, Tensor]]:
    objective = make(OBJECTIVES, name)
    attack = objective.inner(make(ATTACKS, "pgd:steps=3"))
    points = objective.points(model, batch, attack, settings, CounterRNG(0))
    return objective.step(model, batch, points, settings), points


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_points_are_in_the_ball_of_each_image_and_terms_are_per_image(
    name: str, model: Forward, batch: TrainingBatch
) -> None:
    step, points = worked(name, model, batch, ClassSettings(beta=torch.full((3,), 6.0)))
    for point in points.values():
        assert bool((batch.threat.distance(point, batch.x) <= torch.linspace(0.02, 0.1, 12) + 1e-6).all())
    for term in step.terms.values():
        assert term.shape == (12,)
        assert bool((term >= -1e-6).all())
    assert mean(step, batch, ClassSettings()).shape == ()


def test_standard_training_is_the_cross_entropy(model: Forward, batch: TrainingBatch) -> None:
    step, _ = worked("standard", model, batch, ClassSettings())
    assert torch.allclose(mean(step, batch, ClassSettings()), F.cross_entropy(model(batch.x), batch.y))


def test_adversarial_training_is_the_cross_entropy_at_the_attacked_points(model: Forward, batch: TrainingBatch) -> None:
    step, points = worked("at", model, batch, ClassSettings())
    assert torch.allclose(mean(step, batch, ClassSettings()), F.cross_entropy(model(points["robust"]), batch.y))
    assert bool((step.terms["robust"] > F.cross_entropy(model(batch.x), batch.y, reduction="none")).any())


def test_trades_equals_its_equation(model: Forward, batch: TrainingBatch) -> None:
    beta = torch.tensor([1.0, 6.0, 3.0])
    for settings, betas in ((ClassSettings(), torch.full((12,), 6.0)), (ClassSettings(beta=beta), beta[batch.y])):
        step, points = worked("trades", model, batch, settings)
        clean, robust = model(batch.x), model(points["robust"])
        divergence = F.kl_div(F.log_softmax(robust, 1), F.softmax(clean, 1), reduction="none").sum(1)
        expected = (F.cross_entropy(clean, batch.y, reduction="none") + betas * divergence).mean()
        assert torch.allclose(mean(step, batch, settings), expected, atol=1e-6)


def test_trades_maximises_the_divergence_from_a_small_normal_perturbation() -> None:
    attack = Trades().inner(make(ATTACKS, "pgd:steps=10"))
    assert attack == make(ATTACKS, "pgd:steps=10,objective=kl,random_init=normal")


def test_a_bfloat16_step_is_near_the_exact_one(batch: TrainingBatch) -> None:
    from classwise.core.precision import FAST

    small = Small().eval()
    exact, points = worked("trades", EXACT.forward(small), batch, ClassSettings())
    fast = make(OBJECTIVES, "trades").step(FAST.forward(small), batch, points, ClassSettings())
    for name, term in exact.terms.items():
        assert torch.allclose(fast.terms[name], term, atol=0.3, rtol=0.1), name
