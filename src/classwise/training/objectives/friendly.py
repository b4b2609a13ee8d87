"""Friendly adversarial training: an inner attack that stops at the boundary (Zhang et al., ICML 2020)."""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.core.config import Share, configurable
from classwise.core.errors import ClasswiseError
from classwise.core.precision import Forward
from classwise.core.rng import CounterRNG
from classwise.training.classes import ClassSettings
from classwise.training.objectives.adversarial import AdversarialTraining
from classwise.training.objectives.base import TrainingBatch
from classwise.training.objectives.trades import Trades

Past = Annotated[int, pydantic.Field(ge=0)]


def at_the_boundary(attack: Attack, model: Forward, inputs: AttackInputs, past: int) -> tuple[Tensor, Tensor]:
    """Where each image's attack last was right, and where it stops.

    An image stops at the first iterate that makes its misclassified ones, the start among them, more than ``past``. All
    images take part in every pass, so that nothing waits for the device: stopping early saves no time.

    Returns:
        The last iterate before the first misclassified one (the start, if it was wrong already), and the iterate at
        which the image stopped (the attack's last, if it did not), both shaped like ``case.x``.
    """
    state = attack.start(model, inputs)
    right = state["x"]
    crossings = torch.zeros_like(inputs.y)
    for _ in range(attack.length):
        x = state["x"]
        moved = attack.step(model, inputs, state)
        stopped = crossings > past  # where the row froze in an earlier round
        crossings = crossings + ((moved["margin"] < 0) | stopped)
        right = _where(crossings == 0, x, right)
        stopped = crossings > past
        state = {name: _where(stopped, state.get(name, value), value) for name, value in moved.items()}
    return right, state["x"]


def _where(rows: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (chosen.ndim - 1)), chosen, other)


def _tau(taus: tuple[int, ...], milestones: tuple[float, ...], progress: float) -> int:
    """The number of steps past the boundary at a share of training."""
    return taus[sum(progress >= milestone for milestone in milestones)]


def _check(taus: tuple[int, ...], milestones: tuple[float, ...]) -> None:
    if len(taus) != len(milestones) + 1:
        raise ClasswiseError(
            f"tau = {list(taus)} with milestones = {list(milestones)}: give one more tau than milestones, "
            "such as tau [0, 1, 2] and milestones [0.4, 0.75]"
        )


@configurable
class Friendly(AdversarialTraining):
    """CE(f(x'), y), where the inner attack stops tau steps past the boundary.

    Args:
        tau: how many misclassified iterates an image may step on from, before the first milestone, the second, ...
        milestones: the shares of training at which the next tau holds; the paper's epochs 50 and 90 of 120.

    Raises:
        ClasswiseError: if there is not one more tau than milestones.
    """

    source = ("zhang2020attacks",)
    changes = ("loss",)
    example = "fat"

    tau: tuple[Past, ...] = (0, 1, 2)
    milestones: tuple[Share, ...] = (50 / 120, 90 / 120)

    def __post_init__(self) -> None:
        _check(self.tau, self.milestones)

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """``x'``, where the inner attack stopped."""
        past = _tau(self.tau, self.milestones, batch.progress)
        return {
            "robust": at_the_boundary(attack, self.criterion.scaled(model, settings), batch.attack_inputs(rng), past)[1]
        }


@configurable
class FriendlyTrades(Trades):
    """TRADES, where the inner attack on the divergence stops tau steps past the boundary.

    Args:
        tau: how many misclassified iterates an image may step on from, before the first milestone, the second, ...
        milestones: the shares of training at which the next tau holds; the paper's epochs 30, 50 and 70 of 85.

    Raises:
        ClasswiseError: if there is not one more tau than milestones.
    """

    source = ("zhang2020attacks",)
    changes = ("loss",)
    example = "fat-trades:beta=6"

    tau: tuple[Past, ...] = (0, 1, 2, 3)
    milestones: tuple[Share, ...] = (30 / 85, 50 / 85, 70 / 85)

    def __post_init__(self) -> None:
        _check(self.tau, self.milestones)

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """``x'``, where the inner attack stopped."""
        model = self.criterion.scaled(model, settings)
        with torch.no_grad():
            reference = model(batch.x)
        past = _tau(self.tau, self.milestones, batch.progress)
        return {"robust": at_the_boundary(attack, model, batch.attack_inputs(rng, reference=reference), past)[1]}
