"""NAttack against its definition, written as a plain loop, and its count of queries."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import classwise as cw
from classwise.attacks.blackbox.nattack import NAttack
from classwise.attacks.engine import AttackInputs, Engine, Finished, Job
from classwise.attacks.losses import margin
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.threat.ball import Threat

from .blocks import joined
from .models import Linear, Small, images, labelled


def case_of(model: Linear | Small, x: Tensor, epsilon: float = 0.1) -> AttackInputs:
    with torch.no_grad():
        logits = model.eval()(x)
    threat = Threat("Linf", epsilon)
    return AttackInputs(x, logits.argmax(1), torch.arange(len(x)), threat, CounterRNG(3, "attack"), reference=logits)


def test_a_step_is_the_papers_arithmetic() -> None:
    """Image by image, sample by sample, in float64, from the same draws."""
    model, x = Small(4), images(5)
    x[0, 0, 0] = torch.tensor([0.0, 1.0, 0.5, 0.2])  # atanh needs its shrinking here
    case = case_of(model, x)
    attack = NAttack(samples=12, rows_per_pass=17)
    forward = EXACT.forward(model)
    state = attack.step(forward, case, attack.start(forward, case))  # so that iteration 1 is what is tested
    ours = attack.step(forward, case, state)
    model = model.double()
    for row in range(5):
        clean, label = x[row].double(), int(case.y[row])
        mean = state["mean"][row].double()
        inner = torch.atanh((2 * clean - 1) * (1 - 1e-6))
        rewards, uniform = [], []
        for sample in range(12):
            z = case.normal(tuple(x.shape[1:]), 1 + 1 * 12 + sample)[row].double()
            drawn = clean + (0.5 + 0.5 * torch.tanh(inner + mean + 0.1 * z) - clean).clamp(-0.1, 0.1)
            log_p = model(drawn[None]).log_softmax(1)[0].detach()
            others = torch.cat([log_p[:label], log_p[label + 1 :]]).max()
            rewards.append(-0.5 * max(0.0, float(log_p[label] - others)))
            uniform.append(z)
        average = sum(rewards) / 12
        deviation = math.sqrt(sum((reward - average) ** 2 for reward in rewards) / 12)
        for reward, z in zip(rewards, uniform, strict=True):
            mean = mean + 0.02 / (12 * 0.1) * (reward - average) / (deviation + 1e-7) * z
        assert torch.allclose(ours["mean"][row].double(), mean, atol=2e-4)
        expected = clean + (0.5 + 0.5 * torch.tanh(inner + mean) - clean).clamp(-0.1, 0.1)
        assert torch.allclose(ours["x"][row].double(), expected, atol=2e-4)


@pytest.mark.parametrize("rows_per_pass", [1, 50, 64, 1000])
def test_how_many_samples_share_a_pass_changes_nothing(rows_per_pass: int) -> None:
    model, x = Linear(3, side=4), images(16)
    case = case_of(model, x)
    forward = EXACT.forward(model)

    def mean(attack: NAttack) -> Tensor:
        found: Tensor = attack.step(forward, case, attack.start(forward, case))["mean"]
        return found

    assert torch.allclose(mean(NAttack(samples=10, rows_per_pass=rows_per_pass)), mean(NAttack(samples=10)), atol=1e-4)


def test_no_pass_is_larger_than_it_may_be() -> None:
    model, x = Linear(3, side=4), images(16)
    case = case_of(model, x)
    sizes = []

    def forward(x: Tensor) -> Tensor:
        sizes.append(len(x))
        logits: Tensor = model(x)
        assert not logits.requires_grad  # though the model's weights ask for gradients
        return logits

    attack = NAttack(samples=10, rows_per_pass=50)
    attack.step(forward, case, attack.start(forward, case))
    assert sizes == [48, 48, 48, 16, 16]  # 3 + 3 + 3 + 1 samples of 16 images, then the mean's own


def finished(model: Small, x: Tensor, y: Tensor, attack: NAttack, epsilon: float) -> Finished:
    """All images as one block, in their order."""
    jobs = [Job(torch.arange(len(x)), x, y)]
    return joined(Engine(model, batch_size=32).attack(attack, Threat("Linf", epsilon), jobs))


def test_queries_are_counted_and_an_image_misclassified_when_clean_costs_none() -> None:
    model, x = Small(4), images(64)
    right = model.eval()(x).argmax(1)
    y = torch.where(torch.arange(64) < 8, (right + 1) % 4, right)
    result = finished(model, x, y, NAttack(steps=25, samples=7), 0.03)
    queries, success = result.records["queries"], result.success
    assert bool(success[:8].all())
    assert queries[:8].tolist() == [0] * 8
    assert torch.equal(result.x[:8], x[:8])
    others = success[8:]
    assert 3 < int(others.sum()) < 53
    # After steps 10, 20 and 25 the mean's own image is asked for: 7 a step and 1 a test.
    assert set(queries[8:][others].tolist()) <= {71, 142, 178}
    assert set(queries[8:][~others].tolist()) == {178}
    assert not int(result.backwards.sum())


def test_passes_are_counted_image_by_image_however_they_are_packed() -> None:
    model, x, y = labelled(Small(4).eval(), images(32))
    forwards = [
        finished(model, x, y, NAttack(steps=2, samples=6, rows_per_pass=rows), 0.0).forwards.tolist()
        for rows in (1, 96)
    ]
    assert forwards[0] == forwards[1] == [1 + 2 * 7 + 1] * 32  # the clean logits, the steps, the verification


def test_the_default_budget() -> None:
    attack = NAttack()
    assert (attack.length, attack.samples) == (500, 300)


def test_it_succeeds_where_an_adversarial_example_exists() -> None:
    """On a linear model of two classes the margin can fall by eps ‖w_0 - w_1‖₁ and no more."""
    model, x = Linear(2), 0.3 + 0.4 * images(64, side=3)
    with torch.no_grad():
        model.bias.sub_(model(x).mean(0))
    y = model(x).argmax(1)
    reach = 0.1 * float((model.weight[0] - model.weight[1]).detach().abs().sum())
    before = margin(model(x), y).detach()
    result = cw.attack(model, x, y, NAttack(steps=40, samples=40, learning_rate=0.1), threat="Linf:0.1")
    success = model(result).argmax(1) != y
    assert not bool(success[before > reach + 1e-4].any())
    within = before < 0.8 * reach
    assert 10 < int(within.sum()) < 64
    assert float(success[within].float().mean()) > 0.9
