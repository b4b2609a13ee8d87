"""Constraint relaxation: against a loop over images, and its balls, passes and early ends."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks.engine import AttackInputs, Engine, Job
from classwise.attacks.gradient.relaxation import ConstraintRelaxation
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.threat.ball import Threat

from .blocks import joined
from .models import Linear, Small, images, labelled


class Smooth(nn.Module):
    """A random network with a tanh layer: its gradients do not jump, so rounding does not change a trajectory."""

    def __init__(self, classes: int = 5, scale: float = 2.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first = nn.Parameter(torch.randn(24, 32, generator=generator) / 3)
        self.second = nn.Parameter(scale * torch.randn(classes, 24, generator=generator) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return (3 * (x.flatten(1) - 0.5) @ self.first.T).tanh() @ self.second.T


def by_loop(
    model: nn.Module, x: Tensor, y: int, index: int, eps: float, attack: ConstraintRelaxation, target: int
) -> tuple[Tensor, int]:
    """The point of lowest margin of one image, and the number of evaluations; a target of -1 is none."""

    def random(counter: int) -> Tensor:
        return CounterRNG(0, "attack").uniform(torch.tensor([index]), tuple(x.shape), counter)[0] * 2 - 1

    def clip(point: Tensor, radius: float) -> Tensor:
        return torch.maximum(torch.minimum(point, x + radius), x - radius).clamp(0, 1)

    def evaluated(point: Tensor) -> tuple[Tensor, Tensor]:
        leaf = point.clone().requires_grad_(True)
        return model(leaf[None])[0], leaf

    def others(z: Tensor) -> list[int]:
        return [int(c) for c in z.detach().argsort(descending=True) if c != y]

    best, lowest, evaluations = x, float("inf"), 0

    def seen(point: Tensor, z: Tensor) -> None:
        nonlocal best, lowest, evaluations
        margin = float(z[y] - (z[others(z)[0]] if target < 0 else z[target]))
        inside = float((point - x).abs().max()) <= eps * (1 + 1e-5)
        if inside and margin < lowest:
            best, lowest = point, margin
        evaluations += 1

    point = clip(x + eps * random(0), eps)
    for taken in range(11):
        z, leaf = evaluated(point)
        seen(point, z.detach())
        if taken < 10:
            loss = nn.functional.cross_entropy(z[None], torch.tensor([y if target < 0 else target]))
            (gradient,) = torch.autograd.grad(loss if target < 0 else -loss, leaf)
            point = clip(point + eps / 2 * gradient.sign(), eps)
    targets = others(z)[: attack.targets] if target < 0 else [target]
    turn = 0
    for _ in range(attack.restarts):
        for aim in targets:
            s = 0.5
            point = clip(x + eps * random(1 + turn * attack.steps), eps)
            for taken in range(attack.steps):
                if taken and taken % 30 == 0:
                    s = max(s / 2, 0.05)
                if taken % 30 == 20:
                    noise = random(1 + turn * attack.steps + taken)
                    point = clip(clip(point, eps * (1 - s)) + eps * s * noise, eps)
                z, leaf = evaluated(point)
                seen(point, z.detach())
                if taken % 30 == 19 and float((z[y] - z[aim]).detach()) > s:
                    break
                (gradient,) = torch.autograd.grad(z[aim] - z[y], leaf)
                point = clip(point + eps * s * gradient.sign(), eps * (1 + s) if taken % 30 < 10 else eps)
            turn += 1
        if abs(lowest) > attack.threshold:
            break
    return best, evaluations


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("targeted", [False, True])
def test_it_is_the_loop_over_images(classes: int, targeted: bool) -> None:
    """The same image and passes, with radii per image; targets are given up, and images are attacked again."""
    attack = ConstraintRelaxation(steps=50, restarts=2, threshold=0.3)
    model, x, y = labelled(Smooth(classes), images(16))
    radii, target = torch.linspace(0.03, 0.12, 16), (y + 1) % classes
    columns = {"epsilon": radii} | ({"target": target} if targeted else {})
    engine = Engine(model, batch_size=32, early_stop=False)
    done = joined(engine.attack(attack, Threat("Linf", 0.1), [Job(torch.arange(16), x, y, columns)]))
    evaluations = []
    for row in range(16):
        aim = int(target[row]) if targeted else -1
        best, count = by_loop(model, x[row], int(y[row]), row, float(radii[row]), attack, aim)
        assert torch.allclose(done.x[row], best, atol=1e-5), row
        evaluations.append(count)
    assert done.backwards.tolist() == evaluations
    turns = 1 if targeted else min(3, classes - 1)
    assert min(evaluations) == 11 + 20 * turns  # all targets given up in the first cycle
    assert 11 + 50 * turns in evaluations
    assert max(evaluations) > 11 + 50 * turns  # attacked again
    assert 0 < int(done.success.sum()) < 16


def test_points_outside_the_ball_do_not_count() -> None:
    """At eps 0.1 the first parts of the cycles are at up to 0.15 and 0.125; on a linear model they are used in full."""
    model, x = Linear(3), images(8, side=3)
    y, x = model(x).argmax(1), 0.3 + 0.4 * x
    inputs = AttackInputs(x, y, torch.arange(8), Threat("Linf", 0.1), CounterRNG(0))
    attack, forward = ConstraintRelaxation(targets=1, threshold=0), EXACT.forward(model)
    state, farthest = attack.start(forward, inputs), []
    model.weight.data *= 1e-3  # so that no target is given up
    for _ in range(11 + 60):
        state = attack.step(forward, inputs, state)
        distance = (state["seen"] - x).flatten(1).abs().amax(1)
        farthest.append(float(distance.max()))
        assert torch.equal(state["margin"].isfinite(), distance < 0.1 + 1e-6), len(farthest)
    parts = torch.tensor(farthest[11:]).view(2, 30)
    assert float(torch.tensor(farthest[:11]).max()) <= 0.1 + 1e-6
    assert parts[:, 10].tolist() == pytest.approx([0.15, 0.125])
    assert parts[:, 11:].amax(1).tolist() == pytest.approx([0.1, 0.1])


@pytest.mark.slow
def test_refilled_slots_change_no_bit() -> None:
    """48 images through 32 slots, in two orders; every success is in its ball and misclassified."""
    model, x, y = labelled(Small(6).eval(), images(48))
    attack, threat = ConstraintRelaxation(steps=40, restarts=2, threshold=0.2), Threat("Linf", 0.03)
    first, second = (
        joined(Engine(model, batch_size=32).attack(attack, threat, [Job(order, x[order], y[order])]))
        for order in (torch.arange(48), torch.randperm(48, generator=torch.Generator().manual_seed(2)))
    )
    for name in ("x", "iterations", "forwards", "backwards"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert len(set(first.backwards.tolist())) > 5
    assert 5 < int(first.success.sum()) < 43
    assert torch.equal(first.success, model(first.x).argmax(1) != y)
    assert float((first.x - x).abs().max()) <= 0.03 + 1e-6
    assert bool(((first.x >= 0) & (first.x <= 1)).all())


def test_it_misclassifies_what_the_nearest_vertices_do_on_a_linear_model() -> None:
    """There the least margin is in closed form, and the attack reaches it for each target that it tries."""
    model, x, y = labelled(Linear(4), 0.3 + 0.4 * images(40, side=3))
    against = model.weight[y][:, None] - model.weight
    logits = model(x).detach()
    least = logits.gather(1, y[:, None]) - logits - 0.03 * against.abs().sum(2)
    vulnerable = least.scatter(1, y[:, None], torch.inf).amin(1) < 0
    found = model(cw.attack(model, x, y, "cr:restarts=1", threat="Linf:0.03")).argmax(1) != y
    assert torch.equal(found, vulnerable)
    assert 10 < int(found.sum()) < 35


def test_the_step_size_of_an_image_replaces_half_of_the_radius() -> None:
    """A step of PGD and of the first cycle has this size, one of the second cycle half of it."""
    model, x = Linear(3), 0.3 + 0.4 * images(8, side=3)
    inputs = AttackInputs(x, model(x).argmax(1), torch.arange(8), Threat("Linf", 0.1), CounterRNG(0))
    inputs = dataclasses.replace(inputs, step_size=torch.full((8,), 0.004))
    attack, forward = ConstraintRelaxation(targets=1), EXACT.forward(model)
    model.weight.data *= 1e-3  # so that no target is given up
    state, points = attack.start(forward, inputs), []
    for _ in range(11 + 32):
        state = attack.step(forward, inputs, state)
        points.append(state["seen"])
    sizes = [float((points[i + 1] - points[i]).abs().max()) for i in (0, 11, 41)]
    assert sizes == pytest.approx([0.004, 0.004, 0.002], abs=1e-6)
