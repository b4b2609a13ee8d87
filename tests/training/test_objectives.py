"""Objectives compared with their formulas, and their declared costs with counted passes."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.losses import divergence
from classwise.core.compute.precision import EXACT, Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.models.modes import frozen
from classwise.threat.ball import Threat
from classwise.training import OBJECTIVES
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.adversarial import Mart, boosted_cross_entropy
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.objectives.trades import ConfusionWeighted, Trades
from classwise.training.recipe import Recipe
from classwise.training.reductions.base import mean, per_image
from classwise.training.schedules.base import Classes
from classwise.training.schedules.cfa import CCR
from classwise.training.schedules.csr import ConfusionSpectrum, spectral_weights

from ..attacks.models import Linear, Small, images
from ..refusals import check_refused
from .by_hand import remembering


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
    attack, batch = objective.inner(make(ATTACKS, "pgd:steps=3")), remembering(objective, model, batch, 3)
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


CHANGED = {
    "beta": torch.tensor([1.0, 2.0, 4.0]),
    "clean_weight": torch.tensor([1.0, 2.0, 4.0]),
    "robust_weight": torch.tensor([1.0, 2.0, 4.0]),
    "logit_margin": torch.tensor([0.1, 0.2, 0.4]),
    "logit_adjustment": torch.tensor([0.1, 0.2, 0.4]),
    "pair_weight": torch.tensor([[1.0, 2.0, 4.0]] * 3),
    "clean_temperature": torch.tensor([1.0, 2.0, 4.0]),
    "robust_temperature": torch.tensor([1.0, 2.0, 4.0]),
}
"""A value of each class setting that changes the loss of an objective that uses it."""


@pytest.mark.parametrize("setting", CHANGED)
@pytest.mark.parametrize("name", [*OBJECTIVES, "ard:alpha=0.5"])
def test_an_objective_uses_the_class_settings_that_it_declares(
    name: str, setting: str, model: Forward, batch: TrainingBatch
) -> None:
    """A recipe with a schedule that sets another one is refused, so no schedule is without effect."""
    plain = ClassSettings(beta=torch.full((3,), 6.0))
    changed = dataclasses.replace(plain, **{setting: CHANGED[setting]})
    batch = dataclasses.replace(batch, progress=0.5)  # regularisers that grow have a weight
    before, after = (per_image(worked(name, model, batch, given)[0], batch, given) for given in (plain, changed))
    objective = make(OBJECTIVES, name)
    declared = objective.uses | {f"{term}_weight" for term in objective.weighted_terms}
    assert torch.equal(before, after) == (setting not in declared)


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


def test_ccm_and_a_scaled_objective_are_combined() -> None:
    assert Recipe.read("trades-scaled", {"schedules": ["ccm"]}).parts.objective == Trades(scaled=True)


def test_trades_maximises_the_divergence_from_a_small_normal_perturbation() -> None:
    assert Trades().inner(make(ATTACKS, "pgd:steps=10")) == make(
        ATTACKS, "pgd:steps=10,objective=kl,random_init=normal"
    )


def test_a_bfloat16_step_is_near_the_exact_one(batch: TrainingBatch) -> None:
    from classwise.core.compute.precision import FAST

    small = Small().eval()
    exact, points = worked("trades", EXACT.forward(small), batch, ClassSettings())
    fast = make(OBJECTIVES, "trades").step(FAST.forward(small), batch, points, ClassSettings())
    for name, term in exact.terms.items():
        assert torch.allclose(fast.terms[name], term, atol=0.3, rtol=0.1), name


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


def two_pixels(y: list[int]) -> TrainingBatch:
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


def test_without_errors_the_weights_of_csr_are_one() -> None:
    assert torch.equal(spectral_weights(torch.zeros(4, 4), 0.01, 2.01), torch.ones(4, 4))


def test_errors_are_counted_with_the_handicap() -> None:
    """Rates by true class: class 0 has one error in two, class 1 one in two due to the handicap; class 2 is absent."""
    schedule = ConfusionSpectrum()
    state = schedule.start(Classes(("a", "b", "c"), torch.tensor([5, 5, 5])))
    assert torch.equal(schedule.settings(state, ClassSettings(), 0).pair_weight, torch.ones(3, 3))  # type: ignore[arg-type]
    logits = torch.tensor([[5.0, 1.0, 9.0], [5.0, 1.0, 2.0], [9.5, 10.0, 0.0], [1.0, 10.0, 0.0]])
    batch = two_pixels([0, 0, 1, 1])
    state = schedule.after_batch(state, Step({}, robust_logits=logits), batch)
    assert torch.equal(state["errors"], torch.tensor([[0.0, 0, 1], [1, 0, 0], [0, 0, 0]]))
    assert torch.equal(state["seen"], torch.tensor([2.0, 2.0, 0.0]))
    rates = state["errors"] / 2
    state = schedule.after_epoch(state, {}, 0)
    assert torch.equal(state["weight"], spectral_weights(rates, 0.01, 2.01))
    assert float(state["errors"].sum() + state["seen"].sum()) == 0


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_loss_of_csr_equals_its_equation(classes: int) -> None:
    model = EXACT.forward(Linear(classes))
    batch = two_pixels([0, 1, 1, 1, 0])
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
    batch = two_pixels([0, 1, 2])
    points = {"robust": batch.x + 0.05}
    for epoch, names in ((0, {"clean", "robust"}), (199, {"clean", "robust"}), (200, {"clean", "robust", "confused"})):
        for step in (0.5, 390.5):  # the first and the last of an epoch of 391
            now = dataclasses.replace(batch, progress=(epoch * 391 + step) / (202 * 391))
            assert objective.step(model, now, points, ClassSettings()).terms.keys() == names
    assert recipe.parts.optimizer.lr * recipe.parts.lr_schedule.factor(200.5 / 202) == pytest.approx(1e-3)


class Counted(torch.nn.Module):
    """Count forward passes and the backward passes through them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Linear(3)
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        logits: Tensor = self.inner(x)
        if logits.requires_grad:
            logits.register_hook(self._back)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return logits

    def _back(self, _: Tensor) -> None:
        self.backwards += 1


@pytest.mark.parametrize("name", [*OBJECTIVES, "bat:variant=code", "trades:scaled=true"])
def test_the_passes_of_a_step_equal_the_declared_cost(name: str) -> None:
    model = Counted()
    objective: Any = make(OBJECTIVES, name)
    batch = TrainingBatch(
        images(4, 2, 3),
        torch.tensor([0, 1, 1, 1]),
        torch.arange(4),
        Threat("Linf", 0.1),
        progress=1,
        teacher_logits=torch.eye(3)[[0, 1, 1, 1]],
    )
    batch = remembering(objective, Linear(3), batch, 3)
    with frozen(model):
        points = objective.points(
            model, batch, objective.inner(make(ATTACKS, "pgd:steps=10")), ClassSettings(), CounterRNG(0)
        )
    torch.stack(list(objective.step(model, batch, points, ClassSettings()).terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    said = Recipe.read("at", {"objective": name, "attack": "pgd:steps=10"}).parts.passes
    assert (model.forwards, model.backwards) == (said.forward, said.to_image + said.to_weights)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1)])
def test_a_term_is_one_loss_for_each_image(shape: tuple[int, ...]) -> None:
    """A mean would be multiplied by the mean of the class weights, which then have no effect."""
    message = rf"'robust' of the loss has shape {re.escape(str(shape))} for 3 images; return one loss for each image"
    check_refused(message, Step, {"robust": torch.ones(shape)}, robust_logits=torch.zeros(3, 2))
