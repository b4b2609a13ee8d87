"""TRIX and FAIR-TAT: the targets of attacks."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from classwise.attacks.engine import AttackInputs
from classwise.attacks.gradient.ascent import PGD
from classwise.core.compute.precision import Forward
from classwise.core.compute.rng import CounterRNG
from classwise.threat.ball import Threat
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.trades import Trix
from classwise.training.schedules.targets import FairTAT

from .by_hand import CONFIDENCE, batch_of, classes, close, constants


def test_easy_classes_of_trix_by_hand() -> None:
    """Weights 0.96, 1.36 and 0.68 for two images of class 0 and one each of the others: their mean is 0.99."""
    logits = CONFIDENCE.log()[torch.tensor([0, 0, 1, 2])]
    assert Trix().easy(logits, torch.tensor([0, 0, 1, 2])).tolist() == [True, True, False, True]
    assert Trix().easy(logits[:2], torch.tensor([0, 0])).tolist() == [False, False]  # nothing to compare with


@pytest.mark.parametrize("count", [2, 3, 10])
def test_trix_targets_images_of_easy_classes_only(count: int) -> None:
    class Watched(PGD):
        """Records the inputs of its calls."""

        def run(self, model: Forward, inputs: AttackInputs) -> Tensor:
            del model
            seen.append(inputs)
            return inputs.x

    seen: list[AttackInputs] = []
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(60) % count
    logits = 2 * torch.randn(60, count, generator=generator) + torch.eye(count)[y] * y[:, None]
    trix = Trix()
    trix.points(lambda x: logits, batch_of(y), Watched(), ClassSettings(), CounterRNG(0))
    target = seen[0].target
    assert target is not None
    assert torch.equal(target >= 0, trix.easy(logits, y))
    assert 0 < int((target >= 0).sum()) < 60
    assert not bool((target == y).any())
    assert int(target.max()) < count
    assert len(set(((target - y) % count)[target >= 0].tolist())) == count - 1


def test_targeted_attacks_use_the_cross_entropy_instead_of_the_divergence() -> None:
    """A linear model whose logits are the pixels: the target pixel increases, and the untargeted row is unaffected."""

    def linear(x: Tensor) -> Tensor:
        return 5 * x.flatten(1)

    x = torch.full((2, 1, 1, 3), 0.5) + torch.tensor([0.05, 0.0, -0.05])
    case = AttackInputs(
        x, torch.tensor([0, 0]), torch.arange(2), Threat("Linf", 0.1), CounterRNG(0), reference=linear(x)
    )
    attack = PGD(steps=5, step_size=0.05, objective="kl", random_init="normal")
    plain = attack.run(linear, case)
    aimed = attack.run(linear, dataclasses.replace(case, target=torch.tensor([2, -1])))
    assert torch.allclose(aimed[0].flatten(), torch.tensor([0.45, 0.4, 0.55]), atol=1e-6)
    assert torch.equal(aimed[1], plain[1])


CONFUSION = torch.tensor([[5.0, 2.0, 0.0], [1.0, 6.0, 0.0], [3.0, 4.0, 9.0]])
EVENLY = [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]


def test_fair_tat_by_hand() -> None:
    schedule = FairTAT(smoothing=1)
    state = schedule.start(classes(3))
    assert close(schedule.settings(state, constants(3), 0).target, EVENLY)
    state = schedule.after_epoch(state, {"train.confusion": CONFUSION}, 0)  # false positives 4, 6, 0
    expected = [[0, 7 / 8, 1 / 8], [5 / 6, 0, 1 / 6], [5 / 12, 7 / 12, 0]]
    assert close(schedule.settings(state, constants(3), 1).target, expected)


def test_fair_tat_of_the_code_by_hand() -> None:
    """Shares 0.4, 0.6 and 0 of ten false positives: odds e^0.8, e^1.2 and 1, over the other classes."""
    schedule = FairTAT(variant="code", smoothing=7)
    state = schedule.start(classes(3))
    assert close(schedule.settings(state, constants(3), 0).target, EVENLY)
    state = schedule.after_epoch(state, {"train.confusion": CONFUSION}, 0)
    a, b, c = math.exp(0.8), math.exp(1.2), 1.0
    expected = [[0, b / (b + c), c / (b + c)], [a / (a + c), 0, c / (a + c)], [a / (a + b), b / (a + b), 0]]
    assert close(schedule.settings(state, constants(3), 1).target, expected)
    correct = schedule.after_epoch(state, {"train.confusion": torch.diag(torch.tensor([3.0, 4.0, 5.0]))}, 1)
    assert close(schedule.settings(correct, constants(3), 2).target, EVENLY)  # without errors
