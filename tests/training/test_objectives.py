"""Objectives compared with their formulas in torch functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.core.compute.precision import EXACT, Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from classwise.training import OBJECTIVES
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import TrainingBatch
from classwise.training.objectives.trades import Trades
from classwise.training.recipe import Recipe
from classwise.training.reductions.base import mean, per_image
from classwise.training.schedules.base import Classes
from classwise.training.schedules.cfa import CCR

from ..attacks.models import Small, images


@pytest.fixture
def batch() -> TrainingBatch:
    radii = torch.linspace(0.02, 0.1, 12)
    teacher = 3 * torch.eye(3)[torch.arange(12) % 3]  # of the objectives that distil one
    return TrainingBatch(
        images(), torch.arange(12) % 3, torch.arange(12), Threat("Linf", radii), teacher_logits=teacher
    )


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
    points.pop("steps", None)
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


def test_scaled_trades_is_a_convex_combination(model: Forward, batch: TrainingBatch) -> None:
    """(1 - b) CE + b KL with b = beta / (1 + beta), for the beta of the objective and for betas of classes."""
    beta = torch.tensor([1.0, 6.0, 3.0])
    for settings, betas in ((ClassSettings(), torch.full((12,), 6.0)), (ClassSettings(beta=beta), beta[batch.y])):
        step, points = worked("trades:scaled=true", model, batch, settings)
        clean, robust = model(batch.x), model(points["robust"])
        divergence = F.kl_div(F.log_softmax(robust, 1), F.softmax(clean, 1), reduction="none").sum(1)
        b = betas / (1 + betas)
        expected = (1 - b) * F.cross_entropy(clean, batch.y, reduction="none") + b * divergence
        assert torch.allclose(per_image(step, batch, settings), expected, atol=1e-6)


def test_scaled_trades_equals_trades_with_ccr_at_the_constant_beta(model: Forward, batch: TrainingBatch) -> None:
    """lambda2 + t_k = 1 gives beta_k = beta for every class; then both losses are the same bits."""
    classes = Classes(("a", "b", "c"), torch.full((3,), 4))
    constants, ccr = ClassSettings(beta=torch.full((3,), 6.0)), CCR(lambda2=0.5)
    state = ccr.after_epoch(ccr.start(classes), {"train.robust": torch.full((3,), 0.5)}, 0)
    calibrated = ccr.settings(state, constants, 1)
    assert torch.equal(torch.full((3,), 6.0), calibrated.beta)  # type: ignore[arg-type]
    losses = [
        per_image(worked(name, model, batch, settings)[0], batch, settings)
        for name, settings in (("trades:scaled=true", constants), ("trades", calibrated))
    ]
    assert torch.equal(*losses)


def test_the_terms_of_scaled_csr_are_divided_too(model: Forward, batch: TrainingBatch) -> None:
    plain, scaled = (worked(name, model, batch, ClassSettings())[0].terms for name in ("csr", "csr:scaled=true"))
    for name, term in plain.items():
        assert torch.allclose(scaled[name], term / 7, atol=1e-7), name


def test_ccr_and_a_scaled_objective_are_refused() -> None:
    """Both divide by 1 + beta, so the loss would be divided twice."""
    with pytest.raises(ClasswiseError, match=r"'ccr' divides the loss by 1 \+ beta, and so does objective\.scaled"):
        Recipe.read("cfa-trades", {"objective.scaled": True})
    assert Recipe.read("trades-scaled", {"schedules": ["ccm"]}).parts.objective == Trades(scaled=True)


def test_trades_maximises_the_divergence_from_a_small_normal_perturbation() -> None:
    attack = Trades().inner(make(ATTACKS, "pgd:steps=10"))
    assert attack == make(ATTACKS, "pgd:steps=10,objective=kl,random_init=normal")


def test_a_bfloat16_step_is_near_the_exact_one(batch: TrainingBatch) -> None:
    from classwise.core.compute.precision import FAST

    small = Small().eval()
    exact, points = worked("trades", EXACT.forward(small), batch, ClassSettings())
    fast = make(OBJECTIVES, "trades").step(FAST.forward(small), batch, points, ClassSettings())
    for name, term in exact.terms.items():
        assert torch.allclose(fast.terms[name], term, atol=0.3, rtol=0.1), name
