"""Penalties of reductions by hand and by finite differences; worst-case distributions against SLSQP."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from classwise.attacks.losses import cross_entropy
from classwise.stats import metrics
from classwise.threat.ball import Threat
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.recipe import Recipe
from classwise.training.reductions.penalties import Asymmetry, asymmetry_penalty, soft_confusion
from classwise.training.reductions.worst_case import FAAL, Codat, worst_distribution, worst_mixture

from .by_hand import batch_of, close

NONE = ClassSettings()
Y = torch.tensor([0, 0, 1, 2])


def rows_of_logits(classes: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(Y), classes, generator=generator, dtype=torch.float64, requires_grad=True)


def test_the_penalty_of_asymmetry_by_hand() -> None:
    """Pairs 0-1: 0.4 * 0.2 / 0.5 = 0.16; 0-2: 0; 1-2: 0.6 * 0.4 / 0.7."""
    rates = torch.tensor([[0.7, 0.3, 0.0], [0.1, 0.8, 0.1], [0.0, 0.5, 0.5]])
    assert float(asymmetry_penalty(rates, 0.1)) == pytest.approx(0.16 + 0.24 / 0.7)
    assert float(asymmetry_penalty(rates.T, 0.1)) == pytest.approx(0.16 + 0.24 / 0.7)
    assert float(asymmetry_penalty((rates + rates.T) / 2, 0.1)) == 0


def test_the_soft_confusion_is_the_mean_softmax_of_each_class() -> None:
    found, probabilities = soft_confusion(rows_of_logits(), Y), rows_of_logits().softmax(1)
    assert torch.allclose(found[0], probabilities[:2].mean(0))
    assert torch.allclose(found[1:3], probabilities[2:])
    assert bool((found[3] == 0).all())  # absent


@pytest.mark.parametrize("smoothing", [0.1, 0.25])
def test_the_penalty_of_rates_is_the_metric(smoothing: float) -> None:
    counts = np.random.default_rng(0).integers(0, 50, (7, 7))
    rates = torch.tensor(metrics.confusion_rates(counts))
    assert float(asymmetry_penalty(rates, smoothing)) == pytest.approx(metrics.asymmetry_penalty(counts, smoothing))


def test_the_gradient_equals_finite_differences() -> None:
    """Also of the confidences in an absent class."""
    assert torch.autograd.gradcheck(lambda rows: asymmetry_penalty(soft_confusion(rows, Y), 0.1), rows_of_logits())


def test_the_penalty_is_added_to_the_mean() -> None:
    rows = rows_of_logits().float()
    losses = cross_entropy(rows, Y)
    found = Asymmetry(strength=3)(Step({"robust": losses}, robust_logits=rows), batch_of(Y), NONE)
    assert torch.allclose(found, losses.mean() + 3 * asymmetry_penalty(soft_confusion(rows, Y), 0.1))
    clean = Asymmetry(strength=3)(Step({"clean": losses}, clean_logits=rows), batch_of(Y), NONE)
    assert torch.equal(clean, found)


def test_the_loss_of_the_recipe_has_three_parts() -> None:
    """0.1 CE(f(x), y) + CE(f(x'), y) + 10 times the penalty at x', for a linear model."""
    recipe = Recipe.read("sy-far")
    objective, x = recipe.parts.objective, torch.rand(4, 1, 2, 2, generator=torch.Generator().manual_seed(1))
    attacked = 1 - x
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    given = TrainingBatch(x, Y, torch.arange(4), Threat("Linf", 0.1))
    step = objective.step(model, given, {"robust": attacked}, NONE)
    clean, robust = (cross_entropy(model(images), Y).mean() for images in (x, attacked))
    penalty = asymmetry_penalty(soft_confusion(model(attacked), Y), 0.1)
    assert torch.allclose(recipe.parts.reduction(step, given, NONE), 0.1 * clean + robust + 10 * penalty)


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
    found = scipy.optimize.minimize(  # type: ignore[call-overload]  # its stubs want narrower dicts
        lambda p: -p @ margins,
        np.full(count, 1 / count),
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


def losses_of(classes: int, seed: int) -> Tensor:
    return torch.rand(classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def everybody(losses: Tensor) -> Tensor:
    return torch.ones_like(losses, dtype=torch.bool)


def chi_square(p: Tensor) -> float:
    return float((len(p) * p - 1).square().mean())


def by_slsqp(losses: Tensor, rho: float) -> float:
    """The maximum of p @ losses over the intersection of simplex and ball, starting at the uniform distribution."""
    values, classes = losses.numpy(), len(losses)
    sums = {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like}
    ball = {
        "type": "ineq",
        "fun": lambda p: rho - np.mean((classes * p - 1) ** 2),
        "jac": lambda p: -2 * (classes * p - 1),
    }
    found = scipy.optimize.minimize(  # type: ignore[call-overload]
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
    assert torch.allclose(p @ losses, losses.mean() + 0.1**0.5 * losses.std(correction=0))


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


def test_a_reduction_with_settings_is_completed() -> None:
    assert Recipe.read("codat").completed(Threat("Linf", 0.1)).reduction == {"name": "codat", "rho": 0.1}
    assert Recipe.read("trades", {"reduction": "codat:rho=0.3"}).parts.reduction == Codat(rho=0.3)
    assert Recipe.read("trades").completed(Threat("Linf", 0.1)).reduction == "mean"
