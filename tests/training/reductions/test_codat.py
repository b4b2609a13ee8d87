"""CODAT compared with its closed form and a numerical maximiser over the chi-square ball."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.threat.ball import Threat
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.recipe import Recipe
from classwise.training.reductions.codat import Codat, worst_mixture


def losses_of(classes: int, seed: int) -> Tensor:
    return torch.rand(classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def everybody(losses: Tensor) -> Tensor:
    return torch.ones_like(losses, dtype=torch.bool)


def chi_square(p: Tensor) -> float:
    return float((len(p) * p - 1).square().mean())


def by_slsqp(losses: Tensor, rho: float) -> float:
    """The maximum of p @ losses over the intersection of simplex and ball, starting at the uniform distribution."""
    values, classes = losses.numpy(), len(losses)
    solve: Any = minimize
    sums = {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like}
    ball = {
        "type": "ineq",
        "fun": lambda p: rho - np.mean((classes * p - 1) ** 2),
        "jac": lambda p: -2 * (classes * p - 1),
    }
    found = solve(
        lambda p: -p @ values,
        (1 + 1e-3 * (values - values.mean())) / classes,
        jac=lambda _: -values,
        method="SLSQP",
        bounds=[(0, 1)] * classes,
        constraints=[sums, ball],
        options={"maxiter": 500, "ftol": 1e-13},
    )
    return -float(found.fun)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("rho", [0.01, 0.1, 0.5, 1.5, 5.0])
def test_the_mixture_maximises_the_loss_in_the_ball(classes: int, rho: float) -> None:
    """SLSQP, starting at the uniform distribution; with few classes, a large ball exceeds the simplex."""
    for seed in range(3 if classes < 100 else 1):
        losses = losses_of(classes, seed)
        p = worst_mixture(losses, everybody(losses), rho)
        assert abs(float(p.sum()) - 1) < 1e-12
        assert float(p.min()) >= 0
        assert chi_square(p) <= rho + 1e-9
        assert float(p @ losses) == pytest.approx(by_slsqp(losses, rho), abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_inside_the_simplex_the_loss_is_mean_plus_deviation(classes: int) -> None:
    losses = losses_of(classes, 7)
    p = worst_mixture(losses, everybody(losses), 0.1)
    expected = losses.mean() + 0.1**0.5 * losses.std(correction=0)
    assert torch.allclose(p @ losses, expected)


def test_extremes_and_ties() -> None:
    losses = torch.tensor([1.0, 3.0, 3.0, 2.0])
    four = everybody(losses)
    assert torch.allclose(worst_mixture(losses, four, 0.0), torch.full((4,), 0.25))
    assert torch.allclose(worst_mixture(losses, four, 100.0), torch.tensor([0.0, 0.5, 0.5, 0.0]))
    assert torch.allclose(worst_mixture(losses[[0, 1, 3]], four[:3], 2.0), torch.tensor([0.0, 1.0, 0.0]), atol=1e-6)
    assert torch.allclose(worst_mixture(torch.ones(4), four, 0.7), torch.full((4,), 0.25))


def test_absent_classes_are_ignored() -> None:
    losses = losses_of(6, 1)
    present = torch.tensor([True, False, True, True, False, True])
    some = worst_mixture(losses.where(present, torch.nan).nan_to_num(nan=50.0), present, 0.8)
    assert torch.allclose(some[present], worst_mixture(losses[present], everybody(losses)[:4], 0.8))
    assert torch.equal(some[~present], torch.zeros(2, dtype=some.dtype))
    single = torch.tensor([False, True, False, False, False, False])
    assert torch.equal(worst_mixture(losses, single, 0.1), single.to(losses.dtype))


def test_the_reduction_of_a_batch_by_hand() -> None:
    """Class means 2 (two images), 4 (one image), class 2 absent: mean 3, deviation 1; p = (1 -+ sqrt(rho)) / 2."""
    terms = torch.tensor([1.0, 3.0, 4.0], requires_grad=True)
    batch = TrainingBatch(torch.zeros(3, 1, 2, 2), torch.tensor([0, 0, 1]), torch.arange(3), Threat("Linf", 0.1))
    value = Codat(rho=0.25)(Step({"robust": terms}, robust_logits=torch.zeros(3, 3)), batch, ClassSettings())
    value.backward()  # type: ignore[no-untyped-call]
    assert value.item() == pytest.approx(3.5)
    assert terms.grad is not None
    assert torch.allclose(terms.grad, torch.tensor([0.125, 0.125, 0.75]))


def test_class_weights_are_applied_first() -> None:
    batch = TrainingBatch(torch.zeros(2, 1, 2, 2), torch.tensor([0, 1]), torch.arange(2), Threat("Linf", 0.1))
    step = Step({"clean": torch.ones(2)}, clean_logits=torch.zeros(2, 2))
    value = Codat(rho=0)(step, batch, ClassSettings(clean_weight=torch.tensor([1.0, 3.0])))
    assert float(value) == pytest.approx(2)


def test_a_reduction_with_settings_is_completed_and_invalid_settings_raise_errors() -> None:
    recipe = Recipe.read("codat").completed(Threat("Linf", 0.1))
    assert recipe.reduction == {"name": "codat", "rho": 0.1}
    assert Recipe.read("trades", {"reduction": "codat:rho=0.3"}).parts.reduction == Codat(rho=0.3)
    assert Recipe.read("trades").completed(Threat("Linf", 0.1)).reduction == "mean"
    with pytest.raises(ClasswiseError, match="rho"):
        Recipe.read("codat", {"reduction.rho": -1})
    with pytest.raises(ClasswiseError, match="reduction 'mean' has no settings"):
        Recipe.read("trades", {"reduction.rho": 0.1})
