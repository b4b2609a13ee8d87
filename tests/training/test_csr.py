"""CSR: the weights of confusions by hand and by numpy, and the loss."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from classwise.attacks import ATTACKS
from classwise.attacks.losses import divergence
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.objectives.csr import ConfusionWeighted
from classwise.training.recipe import Recipe
from classwise.training.schedules.base import Classes
from classwise.training.schedules.csr import ConfusionSpectrum, spectral_weights

from ..attacks.models import Linear, images


def batch_of(y: list[int]) -> TrainingBatch:
    return TrainingBatch(images(len(y), 2, 3), torch.tensor(y), torch.arange(len(y)), Threat("Linf", 0.1))


def test_a_single_confusion_has_the_largest_weight() -> None:
    confusion = torch.zeros(3, 3)
    confusion[2, 0] = 0.4
    expected = torch.full((3, 3), 0.01)
    expected[2, 0] = 2.01
    assert torch.allclose(spectral_weights(confusion, 0.01, 2.01), expected)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_weights_equal_numpys_first_singular_pair(classes: int) -> None:
    confusion = torch.rand(classes, classes, generator=torch.Generator().manual_seed(classes)).fill_diagonal_(0)
    left, values, right = np.linalg.svd(confusion.double().numpy())
    assert values[0] > values[1]
    product = np.outer(left[:, 0], right[0])
    expected = 0.01 + 2 * (product - product.min()) / (product.max() - product.min())
    assert np.allclose(spectral_weights(confusion, 0.01, 2.01).numpy(), expected, atol=1e-5)


def test_without_errors_the_weights_are_one() -> None:
    assert torch.equal(spectral_weights(torch.zeros(4, 4), 0.01, 2.01), torch.ones(4, 4))


def test_errors_are_counted_with_the_handicap() -> None:
    """Rates by true class: class 0 has one error in two, class 1 one in two due to the handicap; class 2 is absent."""
    schedule = ConfusionSpectrum()
    state = schedule.start(Classes(("a", "b", "c"), torch.tensor([5, 5, 5])))
    assert torch.equal(schedule.settings(state, ClassSettings(), 0).pair_weight, torch.ones(3, 3))  # type: ignore[arg-type]
    logits = torch.tensor([[5.0, 1.0, 9.0], [5.0, 1.0, 2.0], [9.5, 10.0, 0.0], [1.0, 10.0, 0.0]])
    batch = batch_of([0, 0, 1, 1])
    state = schedule.after_batch(state, Step({}, robust_logits=logits), batch)
    assert torch.equal(state["errors"], torch.tensor([[0.0, 0, 1], [1, 0, 0], [0, 0, 0]]))
    assert torch.equal(state["seen"], torch.tensor([2.0, 2.0, 0.0]))
    rates = state["errors"] / 2
    state = schedule.after_epoch(state, {}, 0)
    assert torch.equal(state["weight"], spectral_weights(rates, 0.01, 2.01))
    assert float(state["errors"].sum() + state["seen"].sum()) == 0


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_loss_equals_its_equation(classes: int) -> None:
    model = EXACT.forward(Linear(classes))
    batch = batch_of([0, 1, 1, 1, 0])
    objective = ConfusionWeighted()
    points = objective.points(
        model, batch, objective.inner(make(ATTACKS, "pgd:steps=2")), ClassSettings(), CounterRNG(0)
    )
    clean, robust = model(batch.x), model(points["robust"])
    weights = torch.rand(classes, classes)
    for settings, weight in (
        (ClassSettings(), torch.ones(5)),
        (ClassSettings(pair_weight=weights), weights[batch.y, robust.argmax(1)]),
    ):
        terms = objective.step(model, batch, points, settings).terms
        assert torch.allclose(terms["clean"], 0.7 * F.cross_entropy(clean, batch.y, reduction="none"))
        assert torch.allclose(terms["robust"], 6 * divergence(clean, robust))
        assert torch.allclose(terms["confused"], 0.3 * weight * F.cross_entropy(robust, batch.y, reduction="none"))


def test_before_start_fraction_it_is_trades() -> None:
    recipe = Recipe.read("csr")
    objective = recipe.parts.objective
    model = EXACT.forward(Linear(3))
    batch = batch_of([0, 1, 2])
    points = {"robust": batch.x + 0.05}
    for epoch, names in ((0, {"clean", "robust"}), (199, {"clean", "robust"}), (200, {"clean", "robust", "confused"})):
        for step in (0.5, 390.5):  # the first and the last of an epoch of 391
            now = dataclasses.replace(batch, progress=(epoch * 391 + step) / (202 * 391))
            assert objective.step(model, now, points, ClassSettings()).terms.keys() == names
    rate = recipe.parts.lr_schedule
    assert recipe.parts.optimizer.lr * rate.factor(200.5 / 202) == pytest.approx(1e-3)
