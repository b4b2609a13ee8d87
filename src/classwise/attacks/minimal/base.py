"""Shared functions of minimum-norm attacks: the nearest adversarial example and the columns for the engine."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.engine.rows import choose


def initial_best(inputs: AttackInputs) -> State:
    """Initial columns ``minimal_distance`` (infinite) and ``best`` (the clean image)."""
    infinite = torch.full((len(inputs.x),), torch.inf, dtype=inputs.x.dtype, device=inputs.x.device)
    return {"minimal_distance": infinite, "best": inputs.x.clone()}


def updated_best(state: State, point: Tensor, distance: Tensor) -> State:
    """``minimal_distance`` and ``best``, updated with a point; its distance is infinite unless it is misclassified."""
    nearer = distance < state["minimal_distance"]
    return {
        "minimal_distance": torch.where(nearer, distance, state["minimal_distance"]),
        "best": choose(nearer, point, state["best"]),
    }


def evaluated(inputs: AttackInputs, point: Tensor, margin: Tensor) -> State:
    """Columns ``seen`` and ``margin`` for the engine; the margin of a point outside the ball is infinite."""
    inside = inputs.threat.distance(point, inputs.x) <= inputs.threat.radius(inputs.x).flatten()
    return {"seen": choose(inside, point, inputs.x), "margin": torch.where(inside, margin, torch.inf)}
