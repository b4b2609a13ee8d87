"""The declared cost of every objective, compared with counted passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.models.modes import frozen
from classwise.threat.ball import Threat
from classwise.training import OBJECTIVES
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import TrainingBatch
from classwise.training.recipe import Recipe

from ..attacks.models import Linear, images


class Counted(torch.nn.Module):
    """Count forward passes and the backward passes through them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Linear(3)
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        logits: Tensor = self.inner(x)
        if logits.requires_grad:
            logits.register_hook(self._back)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return logits

    def _back(self, _: Tensor) -> None:
        self.backwards += 1


@pytest.mark.parametrize("name", [*OBJECTIVES, "bat:variant=code", "trades:scaled=true"])
def test_the_passes_of_a_step_equal_the_declared_cost(name: str) -> None:
    model = Counted()
    objective: Any = make(OBJECTIVES, name)
    batch = TrainingBatch(
        images(4, 2, 3),
        torch.tensor([0, 1, 1, 1]),
        torch.arange(4),
        Threat("Linf", 0.1),
        progress=1,
        teacher_logits=torch.eye(3)[[0, 1, 1, 1]],
    )
    with frozen(model):
        points = objective.points(
            model, batch, objective.inner(make(ATTACKS, "pgd:steps=10")), ClassSettings(), CounterRNG(0)
        )
    torch.stack(list(objective.step(model, batch, points, ClassSettings()).terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    said = Recipe.read("at", {"objective": name, "attack": "pgd:steps=10"}).parts.passes
    assert (model.forwards, model.backwards) == (said.forward, said.to_image + said.to_weights)
