"""Gradient attacks against closed forms: on a linear model the best attack is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, Engine, Job
from classwise.attacks.gradient.ascent import FGSM, PGD, Ascent, TemperaturePGD
from classwise.attacks.losses import margin
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.threat.ball import Norm, Threat
from tests.refusals import check_refused

from .models import Linear, Small, images, labelled

GRADIENT_ATTACKS: list[Attack] = [
    FGSM(),
    PGD(steps=40),
    PGD(steps=40, objective="margin"),
    TemperaturePGD(steps=40),
    TemperaturePGD(steps=40, inverse_temperature=1, arithmetic="paper"),
]


@pytest.mark.parametrize("attack", GRADIENT_ATTACKS, ids=str)
@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_two_class_linear_model_reaches_the_exact_optimum(attack: Attack, norm: Norm) -> None:
    """Lowest margin = margin - eps ‖w_y - w_k‖ in the dual norm, where the box does not bind."""
    model = Linear(2)
    x = 0.4 + 0.2 * images(16, side=3)
    y = model(x).argmax(1)
    epsilon = 0.05
    result = cw.attack(model, x, y, attack, threat=Threat(norm, epsilon), early_stop=False)
    normal = (model.weight[0] - model.weight[1]).detach()
    dual = normal.abs().sum() if norm == "Linf" else normal.norm()
    expected = margin(model(x), y) - epsilon * dual
    assert torch.allclose(margin(model(result), y), expected, atol=2e-5)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("target", [0, 1, 2, 3])
def test_a_targeted_margin_attack_reaches_each_targets_optimum(norm: Norm, target: int) -> None:
    """With all other classes far below, the target's margin can rise by eps ‖w_t - w_y‖."""
    model = Linear(4)
    x = 0.4 + 0.2 * images(8, side=3)
    y = torch.full((8,), (target + 1) % 4)
    with torch.no_grad():  # lift the two classes above the others, so that only their difference counts
        model.bias.fill_(-100.0)
        model.bias[[target, (target + 1) % 4]] = torch.tensor([0.0, 3.0])
    attack = PGD(steps=40, objective="margin")
    result = cw.attack(
        model, x, y, attack, threat=Threat(norm, 0.05), targets=torch.full((8,), target), early_stop=False
    )
    normal = (model.weight[y[0]] - model.weight[target]).detach()
    dual = normal.abs().sum() if norm == "Linf" else normal.norm()
    assert torch.allclose(margin(model(result), y), margin(model(x), y) - 0.05 * dual, atol=2e-5)


def test_an_attack_succeeds_exactly_where_the_ball_crosses_the_boundary() -> None:
    model = Linear(2)
    x = 0.3 + 0.4 * images(200, side=3)
    y = model(x).argmax(1)
    reach = 0.2 * (model.weight[0] - model.weight[1]).abs().sum()
    can_break = margin(model(x), y) < reach - 1e-4
    cannot = margin(model(x), y) > reach + 1e-4
    assert 20 < int(can_break.sum()) < 180
    success = model(cw.attack(model, x, y, PGD(steps=20), threat="Linf:0.2")).argmax(1) != y
    assert bool(success[can_break].all())
    assert not bool(success[cannot].any())


def test_absolute_and_relative_steps() -> None:
    model, x, y = labelled(Linear(2), 0.4 + 0.2 * images(4, side=3))
    radii = torch.tensor([0.01, 0.02, 0.04, 0.08])
    threat = Threat("Linf", radii)
    relative = cw.attack(
        model, x, y, PGD(steps=1, step_size="0.5eps", random_init="none"), threat=threat, early_stop=False
    )
    absolute = cw.attack(
        model, x, y, PGD(steps=1, step_size=0.005, random_init="none"), threat=threat, early_stop=False
    )
    assert torch.allclose((relative - x).abs().amax((1, 2, 3)), radii / 2, atol=1e-6)
    assert torch.allclose((absolute - x).abs().amax((1, 2, 3)), torch.full((4,), 0.005), atol=1e-6)


def test_a_step_size_for_each_image_overrides_both() -> None:
    model, x = Linear(2), 0.4 + 0.2 * images(4, side=3)
    steps = torch.tensor([0.001, 0.002, 0.003, 0.004])
    case = AttackInputs(x, model(x).argmax(1), torch.arange(4), Threat("Linf", 0.1), CounterRNG(0), step_size=steps)
    moved = PGD(steps=1, random_init="none").run(EXACT.forward(model), case)
    assert torch.allclose((moved - x).abs().amax((1, 2, 3)), steps, atol=1e-6)


def test_steep_temperatures_underflow_in_the_papers_arithmetic_and_not_in_ours() -> None:
    """At 1/T = 300 on large logits most float32 cross-entropy gradients are exactly zero."""
    model = Linear(3)
    with torch.no_grad():
        model.weight.mul_(3)
    x = 0.3 + 0.4 * images(64, side=3)
    case = AttackInputs(x, model(x).argmax(1), torch.arange(64), Threat("Linf", 0.01), CounterRNG(0))
    forward = EXACT.forward(model)
    shares = {}
    for arithmetic in ("paper", "stable"):
        attack = TemperaturePGD(steps=1, inverse_temperature=300, arithmetic=arithmetic)
        state = attack.step(forward, case, attack.start(forward, case))
        shares[arithmetic] = float(state["zero_gradients"].float().mean())
    assert shares["paper"] > 0.5
    assert shares["stable"] == 0


class Confident(nn.Module):
    """The little network with logits a hundred times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.small = Small(10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.small(x)
        return 100 * logits


def test_a_steep_temperature_is_as_strong_as_the_margin_in_our_arithmetic_only() -> None:
    """At 1/T = 300 on large logits, over 1,000 images, within half a point of PGD on the margin."""
    model, x, y = labelled(Confident().eval(), images(1000))

    def robust(attack: Ascent) -> tuple[float, float]:
        engine = Engine(model, batch_size=250)
        jobs = [Job(torch.arange(1000), x, y)]
        done = list(engine.attack(attack, Threat("Linf", 0.04), jobs))
        zero = sum(int(block.records["zero_gradients"].sum()) for block in done)
        passes = sum(int(block.backwards.sum()) for block in done)
        return 1 - sum(int(block.success.sum()) for block in done) / 1000, zero / passes

    margin_robust, _ = robust(PGD(steps=10, objective="margin"))
    stable_robust, stable_zero = robust(TemperaturePGD(steps=10, inverse_temperature=300))
    paper_robust, paper_zero = robust(TemperaturePGD(steps=10, inverse_temperature=300, arithmetic="paper"))
    assert 0.1 < margin_robust < 0.9
    assert stable_robust <= margin_robust + 0.005
    assert stable_zero == 0
    assert paper_zero > 0.5
    assert paper_robust > margin_robust + 0.05


def test_restarts_never_raise_accuracy_and_differ_from_each_other() -> None:
    model, x, y = labelled(Small(10).eval(), images(64))
    robust = []
    for restarts in (1, 2, 8):
        attack = PGD(steps=1, step_size="0.1eps", restarts=restarts)
        result = cw.attack(model, x, y, attack, threat="Linf:0.1")
        robust.append(model(result).argmax(1) == y)
    assert not bool((robust[1] & ~robust[0]).any())
    assert not bool((robust[2] & ~robust[1]).any())
    assert int(robust[2].sum()) < int(robust[0].sum())


def test_an_attack_without_a_model_says_what_it_needs() -> None:
    check_refused(r"classwise\.attack\(model", PGD(), torch.rand(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64))
