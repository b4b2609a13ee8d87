"""An attack that asks for no gradient, small enough to be seen through."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import Case, State
from classwise.attacks.losses import margin
from classwise.core.compute import Forward
from classwise.core.settings import Count, settings


@settings
class RandomSearch(Attack):
    """Corners of the ball: half of the best one's signs are drawn again, and the better of the two stays."""

    proposals: Count = 100

    @property
    def length(self) -> int:
        return self.proposals

    def start(self, model: Forward, case: Case) -> State:
        count = torch.zeros(len(case.x), dtype=torch.int64)
        lowest = torch.full((len(case.x),), torch.inf)
        return {"x": case.x, "best": case.x, "lowest": lowest, "iteration": count, "done": count > 0}

    def step(self, model: Forward, case: Case, state: State) -> State:
        shape = tuple(case.x.shape[1:])
        draw, keep = (case.uniform(shape, 2 * state["iteration"] + place) for place in (0, 1))
        corner = case.threat.project(case.x + (draw - 0.5).sign() * case.threat.radius(case.x), case.x)
        seen = torch.where((keep < 0.5) | (state["iteration"] == 0)[:, None, None, None], corner, state["best"])
        with torch.no_grad():
            value: Tensor = margin(model(seen), case.y)
        better = value < state["lowest"]
        best = torch.where(better[:, None, None, None], seen, state["best"])
        iteration = state["iteration"] + 1
        return {
            "x": best,
            "best": best,
            "lowest": torch.where(better, value, state["lowest"]),
            "seen": seen,
            "margin": value,
            "iteration": iteration,
            "done": iteration >= self.proposals,
        }
