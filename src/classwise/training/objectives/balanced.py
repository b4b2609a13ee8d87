"""BAT, balance adversarial training (Sun et al., AAAI 2023): one image on each side of the decision boundary."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.attacks.losses import divergence
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import NonNegative, configurable
from classwise.core.settings.description import PassCounts
from classwise.training.classes import ClassSettings, Term
from classwise.training.objectives.base import Objective, Step, TrainingBatch, clean_logits, with_fields
from classwise.training.objectives.friendly import Past, attack_to_boundary


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

    regularised = True
    weighted_terms: ClassVar[frozenset[Term]] = frozenset({"robust"})

    @property
    def attack_overhead(self) -> PassCounts:
        """The clean logits, if the attack maximises the divergence from them."""
        return PassCounts(forward=int(self.variant == "code"))

    def inner(self, attack: Attack) -> Attack:
        """Return the recipe's attack; with ``variant="code"`` on the divergence, with the initialisation of TRADES."""
        if self.variant == "paper":
            return attack
        return with_fields(attack, "bat", objective="kl", random_init="normal")

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
