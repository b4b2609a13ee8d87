"""FAT and BAT: the iterates at which the attack of an image stops, and the loss at the points beside the boundary."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.core.compute.precision import EXACT, Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from classwise.training import OBJECTIVES
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.base import TrainingBatch
from classwise.training.objectives.boundary import Balanced, Friendly, attack_to_boundary, divergence_from_uniform
from classwise.training.recipe import Recipe

from ..attacks.models import Linear, images
from ..refusals import refused

ATTACK: Attack = make(ATTACKS, "pgd:steps=8,step_size=0.06")


def world(classes: int) -> tuple[Forward, AttackInputs]:
    linear, x = EXACT.forward(Linear(classes, seed=1)), images(24, 2, 3)

    def model(images: Tensor) -> Tensor:
        return linear(images - 0.5)  # so that no class has all the images

    y = model(x).argmax(1)
    y = torch.where(torch.arange(24) % 6 == 5, (y + 1) % classes, y)  # some are wrong from the start
    return model, AttackInputs(x, y, torch.arange(24), Threat("Linf", 0.4), CounterRNG(0))


def path(model: Forward, inputs: AttackInputs) -> tuple[Tensor, Tensor]:
    """Return every iterate (T + 1, N, ...) of the plain attack, and whether it is misclassified (T + 1, N)."""
    state = ATTACK.start(model, inputs)
    iterates = [state["x"]]
    for _ in range(ATTACK.length):
        state = ATTACK.step(model, inputs, state)
        iterates.append(state["x"])
    return torch.stack(iterates), torch.stack([model(x).argmax(1) != inputs.y for x in iterates])


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("past", [0, 1, 2, 3])
def test_the_attack_stops_tau_steps_after_the_first_misclassification(classes: int, past: int) -> None:
    """For each image: the first iterate with more than tau misclassified iterates up to it, else the last."""
    model, case = world(classes)
    iterates, wrong = path(model, case)
    right, stopped = attack_to_boundary(ATTACK, model, case, past)
    crossed = 0
    for row in range(24):
        count = wrong[:-1, row].cumsum(0)
        stop = next((t for t in range(ATTACK.length) if count[t] > past), ATTACK.length)
        assert torch.equal(stopped[row], iterates[stop, row])
        assert int(wrong[:stop, row].sum()) <= past
        first = next((t for t in range(ATTACK.length) if wrong[t, row]), ATTACK.length)
        assert torch.equal(right[row], iterates[max(first - 1, 0), row])
        crossed += stop < ATTACK.length
    assert crossed > 4


def test_tau_beyond_the_steps_equals_the_plain_attack() -> None:
    model, case = world(3)
    assert torch.equal(attack_to_boundary(ATTACK, model, case, 8)[1], ATTACK.run(model, case))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fat", {0.0: 0, 0.41: 0, 50 / 120: 1, 0.74: 1, 0.75: 2, 0.999: 2}),
        ("fat-trades", {0.0: 0, 30 / 85: 1, 50 / 85: 2, 0.8: 2, 70 / 85: 3}),
    ],
)
def test_tau_increases_at_the_milestones(name: str, expected: dict[float, int]) -> None:
    model, case = world(3)
    objective = make(OBJECTIVES, name)
    attack = objective.inner(ATTACK)
    batch = TrainingBatch(case.x, case.y, case.index, case.threat)
    compared = dataclasses.replace(case, reference=model(case.x))
    for progress, past in expected.items():
        now = dataclasses.replace(batch, progress=progress)
        points = objective.points(model, now, attack, ClassSettings(), case.rng)
        assert torch.equal(points["robust"], attack_to_boundary(attack, model, compared, past)[1])


def test_too_few_taus_raise_an_error() -> None:
    assert "tau must have one value more than milestones" in refused(Friendly, tau=(0, 1), milestones=(0.3, 0.6))


def test_cfa_fat_uses_tau_3() -> None:
    objective = Recipe.read("cfa-fat").parts.objective
    assert isinstance(objective, Friendly)
    assert (objective.tau, objective.milestones) == ((3,), ())


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
def test_the_loss_of_bat_equals_its_equation(classes: int) -> None:
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


def test_the_variant_of_the_code_attacks_the_divergence_and_goes_one_step_further() -> None:
    paper, code = Balanced(), Balanced(variant="code")
    pgd = make(ATTACKS, "pgd:steps=3")
    assert paper.inner(pgd) == pgd
    assert code.inner(pgd) == make(ATTACKS, "pgd:steps=3,objective=kl,random_init=normal")
    for objective, tau in ((paper, 0), (code, 1), (Balanced(variant="code", tau=2), 2), (Balanced(tau=1), 1)):
        model, case = world(10)
        batch = TrainingBatch(case.x, case.y, case.index, case.threat)
        kl = objective.variant == "code"
        attack = objective.inner(ATTACK)
        inputs = batch.attack_inputs(case.rng, reference=model(case.x).detach() if kl else None)
        expected = attack_to_boundary(attack, model, inputs, tau, last_if_robust=kl)
        points = objective.points(model, batch, attack, ClassSettings(), case.rng)
        assert torch.equal(points["before"], expected[0])
        assert torch.equal(points["after"], expected[1])


def test_the_points_by_hand() -> None:
    """One pixel, class 1 above 0.5, three steps of 0.1: 0.9 stays above it, 0.62 falls below it in the second step."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((torch.zeros(len(x)), 40 * x.flatten() - 20), 1)

    x = torch.tensor([0.9, 0.62]).view(2, 1, 1, 1)
    batch = TrainingBatch(x, torch.tensor([1, 1]), torch.arange(2), Threat("Linf", 0.35))
    attack = make(ATTACKS, "pgd:steps=3,step_size=0.1,random_init=none")
    expected = {
        "bat": ([0.7, 0.52], [0.6, 0.42]),
        "bat:tau=1": ([0.7, 0.52], [0.6, 0.32]),
        "bat:variant=code": ([0.6, 0.52], [0.6, 0.32]),
        "bat:variant=code,tau=0": ([0.6, 0.52], [0.6, 0.42]),
    }
    for spec, (before, after) in expected.items():
        points = make(OBJECTIVES, spec).points(model, batch, attack, ClassSettings(), CounterRNG(0))
        assert points["before"].flatten().tolist() == pytest.approx(before), spec
        assert points["after"].flatten().tolist() == pytest.approx(after), spec


def test_the_recipe_bat_has_the_settings_of_the_paper() -> None:
    assert Recipe.read("bat").parts.objective == Balanced(beta=6, uniform_weight=1, tau=0)
