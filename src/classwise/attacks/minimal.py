"""What attacks that look for the nearest misclassified point share: its memory, and what the engine is told."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.attacks.base import Attack, Case, State
from classwise.errors import UserError
from classwise.threat import Norm


def unfound(case: Case) -> State:
    """The columns of a row for which no misclassified point is known: ``minimal_distance`` is infinite."""
    nothing = torch.full((len(case.x),), torch.inf, dtype=case.x.dtype, device=case.x.device)
    return {"minimal_distance": nothing, "best": case.x.clone()}


def remembered(state: State, point: Tensor, distance: Tensor) -> State:
    """``minimal_distance`` and ``best`` with a point weighed in; its distance is infinite if it is right."""
    nearer = distance < state["minimal_distance"]
    return {
        "minimal_distance": torch.where(nearer, distance, state["minimal_distance"]),
        "best": by_row(nearer, point, state["best"]),
    }


def told(case: Case, point: Tensor, margin: Tensor) -> State:
    """``seen`` and ``margin`` for the engine: outside its ball a point counts for nothing, however wrong it is."""
    inside = case.threat.distance(point, case.x) <= case.threat.radius(case.x).flatten()
    return {"seen": by_row(inside, point, case.x), "margin": torch.where(inside, margin, torch.inf)}


def by_row(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """``torch.where`` with a mask of rows, (N,)."""
    return torch.where(mask.view(-1, *[1] * (yes.ndim - 1)), yes, no)


def check_norm(attack: Attack, name: str, norm: Norm, instead: str) -> None:
    """Refuse a norm that an attack lacks.

    Raises:
        UserError: naming the norms that it has, and what to take ``instead``.
    """
    if norm not in attack.norms:
        raise UserError(f"{name} has no {norm}: it knows {' and '.join(attack.norms)}; {instead}")
