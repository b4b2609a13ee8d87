"""FAAL: its closed form compared with SLSQP, its loss by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch

from classwise.core.errors import ClasswiseError
from classwise.threat.ball import Threat
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step
from classwise.training.recipe import Recipe
from classwise.training.reductions.faal import FAAL, worst_distribution

from ..by_hand import batch_of, close


@pytest.mark.parametrize("count", [2, 3, 10, 100])
@pytest.mark.parametrize("radius", [0.05, 0.5])
def test_the_distribution_is_on_the_boundary_of_the_ball(count: int, radius: float) -> None:
    margins = torch.rand(count, generator=torch.Generator().manual_seed(count)) * 2 - 1
    p = worst_distribution(margins, radius)
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert float(-p.log().mean()) - math.log(count) == pytest.approx(radius, abs=1e-8)
    assert torch.equal(p.argsort(), margins.argsort())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")  # of an older SciPy
@pytest.mark.parametrize("count", [2, 3, 10, 100])
@pytest.mark.parametrize("radius", [0.05, 0.5])
def test_the_closed_form_agrees_with_slsqp(count: int, radius: float) -> None:
    margins = torch.rand(count, generator=torch.Generator().manual_seed(7 + count)).double().numpy() * 2 - 1
    uniform = np.full(count, 1 / count)
    found = scipy.optimize.minimize(  # type: ignore[call-overload]  # its stubs want narrower dicts
        lambda p: -p @ margins,
        uniform,
        jac=lambda p: -margins,
        method="SLSQP",
        bounds=[(1e-9, 1)] * count,
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(count)},
            {
                "type": "ineq",
                "fun": lambda p: radius + np.log(p).mean() + math.log(count),
                "jac": lambda p: 1 / (count * p),
            },
        ],
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert np.abs(worst_distribution(torch.from_numpy(margins), radius).numpy() - found.x).max() < 1e-5


def test_equal_margins_give_the_mean_and_an_extreme_class_is_handled() -> None:
    assert close(worst_distribution(torch.full((10,), 0.3), 0.5), [0.1] * 10)
    margins = torch.zeros(100)
    margins[0] = -1  # a single easy class must be starved almost wholly before the divergence is 0.5
    p = worst_distribution(margins, 0.5)
    assert float(-p.log().mean()) - math.log(100) == pytest.approx(0.5, abs=1e-8)
    assert float(p[0]) < 1e-20


@pytest.mark.parametrize(("weighted", "expected"), [(False, [-0.2, 0.6, -1.0]), (True, [-0.4, 0.6, -1.0])])
def test_faals_margins_and_loss_by_hand(weighted: bool, expected: list[float]) -> None:
    """Two images of class 0 with margins -0.5 and 0.1, one of class 1 with 0.6, none of class 2; 3 images, C = 3."""
    sure = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.7, 0.1, 0.2]])
    y = torch.tensor([0, 0, 1])
    faal = FAAL(weighted=weighted)
    margins = faal.margins(sure.log(), y)
    assert close(margins, expected)
    p = worst_distribution(margins, 0.5)
    losses = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    loss = faal(Step({"robust": losses}, robust_logits=sure.log()), batch_of(y), ClassSettings())
    assert float(loss.detach()) == pytest.approx(float(3 * p[0] + 4 * p[1]), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, losses)
    assert close(gradient, p[y].tolist())


def test_the_recipe_has_the_settings_of_a_reduction() -> None:
    recipe = Recipe.read("faal", {"reduction.radius": 0.1})
    assert recipe.completed(Threat("Linf", 0.1)).reduction == {"name": "faal", "radius": 0.1, "weighted": False}
    assert Recipe.read("at", {"reduction": "faal:radius=0.2"}).parts.reduction == FAAL(radius=0.2)
    with pytest.raises(ClasswiseError, match="reduction 'mean' has no settings"):
        Recipe.read("at", {"reduction": "mean:radius=0.2"})
    with pytest.raises(ClasswiseError, match="unknown reduction 'fall'"):
        Recipe.read("at", {"reduction": "fall"})
