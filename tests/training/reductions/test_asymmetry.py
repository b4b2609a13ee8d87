"""The penalty of Sy-FAR by hand, by the metric of confusion matrices, and its gradient by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from classwise.attacks.losses import cross_entropy
from classwise.core.errors import ClasswiseError
from classwise.stats import metrics
from classwise.threat.ball import Threat
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.recipe import Recipe
from classwise.training.reductions.asymmetry import Asymmetry, asymmetry_penalty, soft_confusion

NONE = ClassSettings()
Y = torch.tensor([0, 0, 1, 2])


def logits(classes: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(Y), classes, generator=generator, dtype=torch.float64, requires_grad=True)


def batch() -> TrainingBatch:
    return TrainingBatch(torch.zeros(len(Y), 1, 1, 1), Y, torch.arange(len(Y)), Threat("Linf", 0.1))


def test_the_penalty_by_hand() -> None:
    """Pairs 0-1: 0.4 * 0.2 / 0.5 = 0.16; 0-2: 0; 1-2: 0.6 * 0.4 / 0.7."""
    rates = torch.tensor([[0.7, 0.3, 0.0], [0.1, 0.8, 0.1], [0.0, 0.5, 0.5]])
    assert float(asymmetry_penalty(rates, 0.1)) == pytest.approx(0.16 + 0.24 / 0.7)
    assert float(asymmetry_penalty(rates.T, 0.1)) == pytest.approx(0.16 + 0.24 / 0.7)
    assert float(asymmetry_penalty((rates + rates.T) / 2, 0.1)) == 0


def test_the_soft_confusion_is_the_mean_softmax_of_each_class() -> None:
    found, probabilities = soft_confusion(logits(), Y), logits().softmax(1)
    assert torch.allclose(found[0], probabilities[:2].mean(0))
    assert torch.allclose(found[1:3], probabilities[2:])
    assert bool((found[3] == 0).all())  # absent


@pytest.mark.parametrize("smoothing", [0.1, 0.25])
def test_the_penalty_of_rates_is_the_metric(smoothing: float) -> None:
    counts = np.random.default_rng(0).integers(0, 50, (7, 7))
    rates = torch.tensor(metrics.confusion_rates(counts))
    by_metric = metrics.asymmetry_penalty(counts, smoothing)
    assert float(asymmetry_penalty(rates, smoothing)) == pytest.approx(by_metric)


def test_the_gradient_equals_finite_differences() -> None:
    """Also of the confidences in an absent class."""
    assert torch.autograd.gradcheck(lambda rows: asymmetry_penalty(soft_confusion(rows, Y), 0.1), logits())


def test_the_penalty_is_added_to_the_mean() -> None:
    rows = logits().float()
    losses = cross_entropy(rows, Y)
    found = Asymmetry(strength=3)(Step({"robust": losses}, robust_logits=rows), batch(), NONE)
    assert torch.allclose(found, losses.mean() + 3 * asymmetry_penalty(soft_confusion(rows, Y), 0.1))
    clean = Asymmetry(strength=3)(Step({"clean": losses}, clean_logits=rows), batch(), NONE)
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


def test_a_smoothing_of_zero_is_refused() -> None:
    with pytest.raises(ClasswiseError, match="smoothing = 0"):
        Recipe.read("sy-far", {"reduction.smoothing": 0})
