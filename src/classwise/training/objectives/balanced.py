"""BAT, balance adversarial training (Sun et al., AAAI 2023): one image on each side of the decision boundary."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.losses import divergence
from classwise.core.config import NonNegative, configurable
from classwise.core.description import PassCounts
from classwise.core.precision import Forward
from classwise.core.rng import CounterRNG
from classwise.training.classes import ClassSettings, Term
from classwise.training.objectives.base import Objective, Step, TrainingBatch
from classwise.training.objectives.friendly import Past, attack_to_boundary


@configurable
class Balanced(Objective):
    """CE(f(r), y) + beta KL(S f(x) ‖ S f(w)) + uniform_weight [KL(S f(r) ‖ U) + KL(S f(w) ‖ U)].

    r is the last iterate of the inner attack before the first misclassified one, which is w. If no iterate is
    misclassified, r and w are the last two iterates; if the initial point is, both are the initial point. U is the
    uniform distribution.

    Args:
        beta: the weight of the divergence between the image and w; a class schedule may set it per class.
        uniform_weight: the weight of the two divergences from U.
        tau: number of steps from the first misclassified iterate to w; 1 in the public code.
    """

    source = ("sun2023improving",)
    changes = ("loss",)
    example = "bat:beta=6,uniform_weight=1"
    cost = PassCounts(forward=3, to_weights=3)

    beta: NonNegative = 6.0
    uniform_weight: NonNegative = 1.0
    tau: Past = 0

    regularised = True
    weighted_terms: ClassVar[frozenset[Term]] = frozenset({"robust"})

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """Compute r (``"before"``) and w (``"after"``) by one attack."""
        model = self.criterion.scaled(model, settings)
        before, after = attack_to_boundary(attack, model, batch.attack_inputs(rng), self.tau)
        return {"before": before, "after": after}

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the terms ``robust`` (cross-entropy and first divergence) and ``uniform`` (the other two)."""
        model = self.criterion.scaled(model, settings)
        clean, before, after = model(batch.x), model(points["before"]), model(points["after"])
        beta = settings.of("beta", batch.y)
        regulariser = divergence(clean, after) * (self.beta if beta is None else beta)
        terms = {
            "robust": self.criterion(before, batch.y, settings) + regulariser,
            "uniform": self.uniform_weight * (divergence_from_uniform(before) + divergence_from_uniform(after)),
        }
        return Step(terms, clean_logits=clean, robust_logits=after)


def divergence_from_uniform(logits: Tensor) -> Tensor:
    """Compute KL(softmax(logits) ‖ U), which is log C minus the entropy of the softmax, (N,)."""
    logs = logits.log_softmax(1)
    return math.log(logits.shape[1]) + (logs.exp() * logs).sum(1)
