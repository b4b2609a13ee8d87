"""Shared parts of attacks that minimise a distance: the nearest point found, and what the engine is given."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.engine.rows import choose
from classwise.core.errors import ClasswiseError
from classwise.core.threat import Norm


def unfound(inputs: AttackInputs) -> State:
    """The columns of a row for which no misclassified point is known: ``minimal_distance`` is infinite."""
    nothing = torch.full((len(inputs.x),), torch.inf, dtype=inputs.x.dtype, device=inputs.x.device)
    return {"minimal_distance": nothing, "best": inputs.x.clone()}


def remembered(state: State, point: Tensor, distance: Tensor) -> State:
    """``minimal_distance`` and ``best``, updated with a point; its distance is infinite if it is no success."""
    nearer = distance < state["minimal_distance"]
    return {
        "minimal_distance": torch.where(nearer, distance, state["minimal_distance"]),
        "best": choose(nearer, point, state["best"]),
    }


def reported(inputs: AttackInputs, point: Tensor, margin: Tensor) -> State:
    """``seen`` and ``margin`` for the engine: a point outside the ball is no success, whatever its margin."""
    inside = inputs.threat.distance(point, inputs.x) <= inputs.threat.radius(inputs.x).flatten()
    return {"seen": choose(inside, point, inputs.x), "margin": torch.where(inside, margin, torch.inf)}


def check_norm(attack: Attack, name: str, norm: Norm, instead: str) -> None:
    """Refuse a norm that an attack does not support.

    Raises:
        ClasswiseError: naming the norms that it supports, and what to use ``instead``.
    """
    if norm not in attack.norms:
        raise ClasswiseError(f"{name} has no {norm}: it knows {' and '.join(attack.norms)}; {instead}")
