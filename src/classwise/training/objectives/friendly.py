"""FAT, friendly adversarial training (Zhang et al., ICML 2020): early stopping of the inner attack."""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.attacks.engine.rows import choose
from classwise.core.compute.precision import Forward
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Share, configurable
from classwise.training.objectives.adversarial import AdversarialTraining
from classwise.training.objectives.base import Objective
from classwise.training.objectives.trades import Trades

Past = Annotated[int, pydantic.Field(ge=0)]


def attack_to_boundary(
    attack: Attack, model: Forward, inputs: AttackInputs, tau: int, *, last_if_robust: bool = False
) -> tuple[Tensor, Tensor]:
    """Run an attack on each image until it has more than ``tau`` misclassified iterates (including the initial point).

    All images take part in every pass, which avoids synchronisation with the device; early stopping saves no time.

    Args:
        attack: the attack.
        model: the model.
        inputs: the images, labels and threats.
        tau: the allowed number of misclassified iterates before the last.
        last_if_robust: if no iterate is misclassified, return the last iterate twice instead of the last two.

    Returns:
        The last iterate before the first misclassified one (the initial point, if that is misclassified), and the
        iterate at which the image stopped (or the last); both shaped like ``inputs.x``.
    """
    state = attack.start(model, inputs)
    before = state["x"]
    crossings = torch.zeros_like(inputs.y)
    for _ in range(attack.length):
        x = state["x"]
        moved = attack.step(model, inputs, state)
        stopped = crossings > tau  # in an earlier step
        crossings = crossings + ((moved["margin"] < 0) | stopped)
        before = choose(crossings == 0, x, before)
        stopped = crossings > tau
        state = {name: choose(stopped, state.get(name, value), value) for name, value in moved.items()}
    if last_if_robust:
        before = choose(crossings == 0, state["x"], before)
    return before, state["x"]


@configurable
class _EarlyStopped(Objective):
    """An objective whose inner attack stops tau steps after the first misclassified iterate."""

    tau: tuple[Past, ...]
    milestones: tuple[Share, ...]

    def __post_init__(self) -> None:
        if len(self.tau) != len(self.milestones) + 1:
            raise ClasswiseError(
                f"tau = {list(self.tau)} with milestones = {list(self.milestones)}: tau must have one value more than "
                "milestones, such as tau [0, 1, 2] and milestones [0.4, 0.75]"
            )

    def attacked(self, model: Forward, inputs: AttackInputs, attack: Attack, progress: float) -> dict[str, Tensor]:
        """Compute ``x'``, the iterate at which the inner attack stopped."""
        tau = self.tau[sum(progress >= milestone for milestone in self.milestones)]
        return {"robust": attack_to_boundary(attack, model, inputs, tau)[1]}


@configurable
class Friendly(_EarlyStopped, AdversarialTraining):
    """FAT: CE(f(x'), y), where the inner attack stops tau steps after the first misclassified iterate.

    Args:
        tau: number of steps after the first misclassified iterate; one value per interval between milestones.
        milestones: fractions of training at which the next tau applies; epochs 50 and 90 of 120 in the paper.

    Raises:
        ClasswiseError: if ``tau`` does not have one value more than ``milestones``.
    """

    source = ("zhang2020attacks",)
    changes = ("loss",)
    example = "fat"

    tau: tuple[Past, ...] = (0, 1, 2)
    milestones: tuple[Share, ...] = (50 / 120, 90 / 120)


@configurable
class FriendlyTrades(_EarlyStopped, Trades):
    """FAT on TRADES: the inner attack on the divergence stops tau steps after the first misclassified iterate.

    Args:
        tau: number of steps after the first misclassified iterate; one value per interval between milestones.
        milestones: fractions of training at which the next tau applies; epochs 30, 50 and 70 of 85 in the paper.

    Raises:
        ClasswiseError: if ``tau`` does not have one value more than ``milestones``.
    """

    source = ("zhang2020attacks",)
    changes = ("loss",)
    example = "fat-trades:beta=6"

    tau: tuple[Past, ...] = (0, 1, 2, 3)
    milestones: tuple[Share, ...] = (30 / 85, 50 / 85, 70 / 85)
