"""Every attack on a GPU against the same attack on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, CountedForward, Engine, Job
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.models.modes import evaluating, frozen
from classwise.threat.ball import Norm, Threat

from ..attacks.models import Small, images
from ..attacks.test_contract import VARIANTS
from ..attacks.test_graphed_queue import CLASSES, brief, rows_of
from . import MARKS

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")]

COUNT = 32
RADII: dict[Norm, float] = {"Linf": 0.03, "L2": 0.3, "L1": 2.0, "recolour": 0.3, "spatial": 1.0}
MOVED = 1e-4
"""Difference from which a pixel has moved: the sign of a gradient near 0 may differ."""
CASES = [(name, norm) for name in (*ATTACKS, *VARIANTS) for norm in brief(name).norms]


def inputs() -> tuple[Small, Tensor, Tensor]:
    """A model, images and labels, of which every fourth is not the prediction."""
    model, x = Small(CLASSES).eval(), images(COUNT)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[::4] = (y[::4] + 1) % CLASSES
    return model, x, y


def steps_of(attack: Attack, threat: Threat, device: str) -> list[dict[str, Tensor]]:
    """The state of an attack at its start and after its first step, on the CPU."""
    model, x, y = inputs()
    model, x, y = model.to(device), x.to(device), y.to(device)
    index = torch.arange(COUNT, device=device)
    with evaluating(model), frozen(model), true_float32(x.device):
        forward = CountedForward(EXACT.forward(model), model)
        reference, restart = forward(x).detach(), torch.zeros_like(y)
        case = AttackInputs(x, y, index, threat, CounterRNG(0, "attack"), reference=reference, restart=restart)
        start = attack.start(forward, case)
        state = attack.step(forward, case, start)
    return [{name: value.detach().cpu() for name, value in values.items()} for values in (start, state)]


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_a_step_is_that_of_the_cpu(name: str, norm: Norm) -> None:
    threat = Threat(norm, RADII[norm])
    on_cpu, on_gpu = (steps_of(brief(name), threat, device) for device in ("cpu", "cuda"))
    correct = torch.arange(COUNT) % 4 != 0
    # At a misclassified image the loss of C&W is the distance 0; its gradient is rounding, and Adam steps by its sign.
    compared = correct if name == "cw-l2" else torch.ones_like(correct)
    for expected, found in zip(on_cpu, on_gpu, strict=True):
        assert found.keys() == expected.keys()
        moved = (found["x"] - expected["x"]).abs() > MOVED
        moved[~compared] = False
        assert int(moved.sum()) <= 0.02 * moved.numel()
        same = ~moved.flatten(1).any(1)
        if "seen" in expected:
            same &= ((found["seen"] - expected["seen"]).abs() <= MOVED).flatten(1).all(1)
            torch.testing.assert_close(found["margin"][same], expected["margin"][same], rtol=1e-3, atol=1e-3)
        assert int(same.sum()) >= COUNT // 2


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_an_attack_is_that_of_the_cpu(name: str, norm: Norm) -> None:
    """Its verdicts are those of the CPU on the returned images, and about as many attacks succeed."""
    threat, attack = Threat(norm, RADII[norm]), brief(name)
    found: dict[str, dict[str, Any]] = {}
    for device in ("cpu", "cuda"):
        model, x, y = inputs()
        engine = Engine(model.to(device), precision=EXACT, batch_size=16)
        found[device] = rows_of(list(engine.attack(attack, threat, [Job(torch.arange(COUNT), x, y)])))
    model, x, y = inputs()
    expected, result = found["cpu"], found["cuda"]
    assert result["index"].tolist() == expected["index"].tolist()
    assert abs(int(result["success"].sum()) - int(expected["success"].sum())) <= 3
    logits = EXACT.forward(model)(result["x"]).detach()
    torch.testing.assert_close(result["logits"], logits, rtol=1e-3, atol=1e-3)
    first, second = logits.topk(2).values.unbind(1)
    decided = first - second > 1e-3
    assert torch.equal(result["success"][decided], (logits.argmax(1) != y)[decided])
    if norm in ("Linf", "L2", "L1"):
        torch.testing.assert_close(threat.project(result["x"], x), result["x"], rtol=0, atol=1e-5)
