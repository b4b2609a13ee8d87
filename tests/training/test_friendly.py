"""Friendly adversarial training: the iterate at which the attack of an image stops."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.core.compute.precision import EXACT, Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from classwise.training import OBJECTIVES
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import TrainingBatch
from classwise.training.objectives.friendly import Friendly, attack_to_boundary
from classwise.training.recipe import Recipe

from ..attacks.models import Linear, images

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
    with pytest.raises(ClasswiseError, match="tau must have one value more than milestones"):
        Friendly(tau=(0, 1), milestones=(0.3, 0.6))
    with pytest.raises(ClasswiseError, match="tau must have one value more than milestones"):
        Recipe.read("fat", {"objective.tau": [0, 1]})


def test_cfa_fat_uses_tau_3() -> None:
    objective = Recipe.read("cfa-fat").parts.objective
    assert isinstance(objective, Friendly)
    assert (objective.tau, objective.milestones) == ((3,), ())
