"""BAT compared with its formula at the points on both sides of the boundary."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from classwise.core.precision import EXACT
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.training.classes import ClassSettings
from classwise.training.objectives.balanced import Balanced, divergence_from_uniform
from classwise.training.objectives.base import TrainingBatch
from classwise.training.recipe import Recipe

from ..attacks.models import Linear, images
from .test_friendly import ATTACK, world


def test_the_divergence_from_uniform_by_hand() -> None:
    """p = (0.5, 0.25, 0.25): log 3 - 1.5 log 2; uniform: 0; certain: log 3, even where p rounds to 1."""
    logits = torch.tensor([[0.5, 0.25, 0.25], [1.0, 1.0, 1.0]]).log()
    certain = torch.tensor([[900.0, 0.0, 0.0]])
    expected = torch.tensor([math.log(3) - 1.5 * math.log(2), 0.0, math.log(3)])
    assert torch.allclose(divergence_from_uniform(torch.cat((logits, certain))), expected, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_one_point_is_classified_correctly_and_the_other_is_not(classes: int) -> None:
    model, case = world(classes)
    batch = TrainingBatch(case.x, case.y, case.index, case.threat)
    points = Balanced().points(model, batch, ATTACK, ClassSettings(), case.rng)
    start_right = model(ATTACK.start(model, case)["x"]).argmax(1) == case.y
    assert torch.equal(model(points["before"]).argmax(1) == case.y, start_right)
    crossed = model(ATTACK.run(model, case)).argmax(1) != case.y
    assert int((crossed & start_right).sum()) > 0
    assert bool((model(points["after"]).argmax(1) != case.y)[crossed].all())


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_loss_equals_its_equation(classes: int) -> None:
    model = EXACT.forward(Linear(classes))
    batch = TrainingBatch(images(5, 2, 3), torch.tensor([0, 1, 1, 1, 0]), torch.arange(5), Threat("Linf", 0.1))
    for settings, beta in (
        (ClassSettings(), torch.full((5,), 6.0)),
        (ClassSettings(beta=torch.arange(classes)), batch.y.float()),
    ):
        points = Balanced().points(model, batch, ATTACK, settings, CounterRNG(0))
        step = Balanced().step(model, batch, points, settings)
        clean, right, wrong = (model(x).softmax(1) for x in (batch.x, points["before"], points["after"]))
        robust = F.nll_loss(right.log(), batch.y, reduction="none") + beta * (clean * (clean / wrong).log()).sum(1)
        uniform = sum((p * (p * classes).log()).sum(1) for p in (right, wrong))
        assert torch.allclose(step.terms["robust"], robust, atol=1e-4)
        assert torch.allclose(step.terms["uniform"], torch.as_tensor(uniform), atol=1e-5)
        assert step.clean_logits is not None


def test_the_recipe_has_the_settings_of_the_paper() -> None:
    assert Recipe.read("bat").parts.objective == Balanced(beta=6, uniform_weight=1, tau=0)
