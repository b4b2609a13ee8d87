"""Attacks that stop at the decision boundary: FAT (Zhang et al., ICML 2020) and BAT (Sun et al., AAAI 2023)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import pydantic
import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.attacks.engine.rows import choose
from classwise.attacks.losses import divergence
from classwise.core.compute.precision import Forward
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import NonNegative, Share, configurable
from classwise.core.settings.description import PassCounts
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.adversarial import AdversarialTraining
from classwise.training.objectives.base import Objective, Step, TrainingBatch, clean_logits, with_fields
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
    example = "fat-trades:beta=6"

    tau: tuple[Past, ...] = (0, 1, 2, 3)
    milestones: tuple[Share, ...] = (30 / 85, 50 / 85, 70 / 85)


@configurable
class Balanced(Objective):
    """CE(f(r), y) + beta KL(S f(x) ‖ S f(w)) + uniform_weight [KL(S f(r) ‖ U) + KL(S f(w) ‖ U)].

    r is the last iterate of the inner attack before the first misclassified one, which is w. If no iterate is
    misclassified, r and w are the last two iterates; if the initial point is, both are the initial point. U is the
    uniform distribution.

    With ``variant="code"``, as in the public code, the attack maximises KL(S f(x) ‖ S f(x')) from x + 0.001 N(0, 1)
    instead of the cross-entropy, w is one step past the first misclassified iterate, and r is the last iterate if none
    is misclassified. (The code runs the attack twice, with two initial points; here one run gives both points.)

    Args:
        beta: the weight of the divergence between the image and w; a class schedule may set it per class.
        uniform_weight: the weight of the two divergences from U.
        tau: number of steps from the first misclassified iterate to w; None for 0, or 1 with ``variant="code"``.
        variant: the inner attack of the paper or of the public code.
    """

    source = ("sun2023improving",)
    changes = ("loss",)
    example = "bat:beta=6,uniform_weight=1"
    cost = PassCounts(forward=3, to_weights=3)

    beta: NonNegative = 6.0
    uniform_weight: NonNegative = 1.0
    tau: Past | None = None
    variant: Literal["paper", "code"] = "paper"

    uses = Objective.uses | {"beta"}
    weighted_terms = frozenset({"robust"})

    @property
    def attack_overhead(self) -> PassCounts:
        """The clean logits, if the attack maximises the divergence from them."""
        return PassCounts(forward=int(self.variant == "code"))

    def inner(self, attack: Attack) -> Attack:
        """Return the recipe's attack; with ``variant="code"`` on the divergence, with the initialisation of TRADES."""
        if self.variant == "paper":
            return attack
        return with_fields(attack, objective="kl", random_init="normal")

    def reference(self, model: Forward, batch: TrainingBatch, settings: ClassSettings) -> Tensor | None:
        """Return the clean logits with ``variant="code"``."""
        return clean_logits(model, batch) if self.variant == "code" else None

    def attacked(self, model: Forward, inputs: AttackInputs, attack: Attack, progress: float) -> dict[str, Tensor]:
        """Compute r (``"before"``) and w (``"after"``) by one attack."""
        code = self.variant == "code"
        tau = int(code) if self.tau is None else self.tau
        before, after = attack_to_boundary(attack, model, inputs, tau, last_if_robust=code)
        return {"before": before, "after": after}

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the terms ``robust`` (cross-entropy and first divergence) and ``uniform`` (the other two)."""
        model = self.criterion.scaled(model, settings)
        clean, before, after = model(batch.x), model(points["before"]), model(points["after"])
        regulariser = divergence(clean, after) * self.betas(batch, settings)
        terms = {
            "robust": self.criterion(before, batch.y, settings) + regulariser,
            "uniform": self.uniform_weight * (divergence_from_uniform(before) + divergence_from_uniform(after)),
        }
        return Step(terms, clean_logits=clean, robust_logits=after)


def divergence_from_uniform(logits: Tensor) -> Tensor:
    """Compute KL(softmax(logits) ‖ U), which is log C minus the entropy of the softmax, (N,)."""
    logs = logits.log_softmax(1)
    return math.log(logits.shape[1]) + (logs.exp() * logs).sum(1)
