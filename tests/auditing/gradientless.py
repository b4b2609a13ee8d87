"""Models whose logits have no gradient, or a gradient of zero, and an attack that asks for none."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.losses import margin
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Count, configurable
from tests.auditing import toys


class Silent(toys.Wrapped):
    """Runs without recording gradients."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = super().forward(x)
        return logits


class Elsewhere(toys.Wrapped):
    """Computes outside torch, like the session of another runtime."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(super().forward(torch.from_numpy(x.numpy())).detach().numpy())


def detached(logits: Tensor, _: Tensor) -> Tensor:
    """The logits, without their gradient."""
    return logits.detach()


def thermometer(x: Tensor) -> Tensor:
    """Eight grey levels by comparisons, which autograd does not record."""
    levels = torch.linspace(0, 1, 9)[1:-1]
    return (x[..., None] > levels).float().mean(-1)


def sign(x: Tensor) -> Tensor:
    """Two grey levels; the gradient of the sign is recorded, and is zero."""
    return 0.5 + 0.1 * (x - 0.5).sign()


def without_gradients() -> dict[str, nn.Module]:
    """Models to which no gradient attack is applicable."""
    return {
        "detached": toys.Wrapped(back=detached),
        "no_grad": Silent(),
        "elsewhere": Elsewhere(),
        "thermometer": toys.Wrapped(front=thermometer),
    }


class DetachedDigits(nn.Module):
    """A linear model of 8 x 8 digits that detaches its logits: for the command line, which imports it by path."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1)).detach()
        return logits


def detached_digits() -> nn.Module:
    return DetachedDigits().eval()


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
