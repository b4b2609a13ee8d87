"""Single-step attacks for training, on linear models, where the sign of the gradient is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.engine import AttackInputs
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.threat.ball import Threat

EPSILON = torch.tensor([0.05, 0.02, 0.1, 0.0])
WEIGHTS = torch.tensor([1.0, -2.0, 3.0, -0.5]).view(1, 1, 2, 2)
UP = WEIGHTS.sign()
"""Where class 1 lies: the direction in which the cross-entropy of class 0 rises."""


def linear(x: Tensor) -> Tensor:
    score = (x * WEIGHTS).flatten(1).sum(1)
    return torch.stack([torch.zeros_like(score), score], 1)


def case(x: Tensor, norm: str = "Linf", **more: Any) -> AttackInputs:
    count = len(x)
    threat = Threat("Linf" if norm == "Linf" else "L2", EPSILON[:count])
    return AttackInputs(x, torch.zeros(count, dtype=torch.int64), torch.arange(count), threat, CounterRNG(3), **more)


def noise_of(inputs: AttackInputs, factor: float) -> Tensor:
    """The start that the draws give, in [0, 1]."""
    wide = inputs.threat.with_epsilon(inputs.threat.epsilon * factor)
    return wide.uniform(inputs.x, inputs.index, inputs.rng)


def test_n_fgsm_is_noise_of_two_radii_and_a_whole_step_without_a_projection() -> None:
    rows = case(torch.full((4, 1, 2, 2), 0.5))
    found = make(ATTACKS, "n-fgsm").run(linear, rows)
    radius = EPSILON.view(4, 1, 1, 1)
    assert torch.allclose(found, noise_of(rows, 2) + radius * UP, atol=1e-7)
    gone = rows.threat.distance(found, rows.x)
    assert bool((gone[:3] > EPSILON[:3]).any())  # outside the ball
    assert bool((gone <= 3 * EPSILON + 1e-6).all())


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_n_fgsm_clips_to_the_box_before_and_after_the_step(value: float) -> None:
    rows = case(torch.full((4, 1, 2, 2), value))
    start = noise_of(rows, 2)
    assert bool(((start >= 0) & (start <= 1)).all())
    found = make(ATTACKS, "n-fgsm").run(linear, rows)
    assert torch.allclose(found, (start + EPSILON.view(4, 1, 1, 1) * UP).clamp(0, 1), atol=1e-7)


def test_n_fgsm_takes_the_step_of_each_image_and_scales_in_l2() -> None:
    steps = torch.tensor([0.01, 0.02, 0.03, 0.04])
    rows = case(torch.full((4, 1, 2, 2), 0.5), step_size=steps)
    moved = make(ATTACKS, "n-fgsm:noise=1").run(linear, rows) - noise_of(rows, 1)
    assert torch.allclose(moved, steps.view(4, 1, 1, 1) * UP, atol=1e-7)
    rows = case(torch.full((4, 1, 2, 2), 0.5), "L2")
    moved = make(ATTACKS, "n-fgsm").run(linear, rows) - noise_of(rows, 2)
    unit = (WEIGHTS / WEIGHTS.norm()).expand(4, 1, 2, 2)
    assert torch.allclose(moved, EPSILON.view(4, 1, 1, 1) * unit, atol=1e-6)


def test_fast_at_steps_a_quarter_past_the_radius_and_comes_back() -> None:
    rows = case(torch.full((4, 1, 2, 2), 0.5))
    found = make(ATTACKS, "fgsm:random_init=uniform,step_size=1.25eps").run(linear, rows)
    radius = EPSILON.view(4, 1, 1, 1)
    raw = noise_of(rows, 1) + 1.25 * radius * UP - rows.x
    assert torch.allclose(found, rows.x + torch.minimum(torch.maximum(raw, -radius), radius), atol=1e-7)
