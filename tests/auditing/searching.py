"""An attack that asks for no gradient, small enough to be seen through."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.losses import margin
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Count, configurable


@configurable
class RandomSearch(Attack):
    """Corners of the ball: half of the best one's signs are drawn again, and the better of the two stays."""

    proposals: Count = 100

    @property
    def length(self) -> int:
        return self.proposals

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        count = torch.zeros(len(inputs.x), dtype=torch.int64)
        lowest = torch.full((len(inputs.x),), torch.inf)
        return {"x": inputs.x, "best": inputs.x, "lowest": lowest, "iteration": count, "done": count > 0}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        shape = tuple(inputs.x.shape[1:])
        draw, keep = (inputs.uniform(shape, 2 * state["iteration"] + place) for place in (0, 1))
        corner = inputs.threat.project(inputs.x + (draw - 0.5).sign() * inputs.threat.radius(inputs.x), inputs.x)
        seen = torch.where((keep < 0.5) | (state["iteration"] == 0)[:, None, None, None], corner, state["best"])
        with torch.no_grad():
            value: Tensor = margin(model(seen), inputs.y)
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
