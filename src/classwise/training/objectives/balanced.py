"""BAT, balance adversarial training (Sun et al., AAAI 2023): a point on each side of the boundary."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.losses import divergence
from classwise.core.config import NonNegative, configurable
from classwise.core.description import Passes
from classwise.core.precision import Forward
from classwise.core.rng import CounterRNG
from classwise.training.classes import ClassSettings, Term
from classwise.training.objectives.base import Objective, Step, TrainingBatch
from classwise.training.objectives.friendly import Past, at_the_boundary


@configurable
class Balanced(Objective):
    """CE(f(r), y) + beta KL(S f(x) ‖ S f(w)) + uniform [KL(S f(r) ‖ U) + KL(S f(w) ‖ U)].

    r is the inner attack's last iterate before the first misclassified one, and w the first misclassified one. An image
    that never crosses has its last two iterates as r and w; of one that starts wrong, both are the start.

    Args:
        beta: weight of the divergence between the image and w; a class schedule may set one per class.
        uniform_weight: weight of the two divergences from the uniform law U.
        tau: how many steps w goes beyond the first misclassified iterate; the public code takes 1.
    """

    source = ("sun2023improving",)
    changes = ("loss",)
    example = "bat:beta=6,uniform_weight=1"
    cost = Passes(forward=3, to_weights=3)

    beta: NonNegative = 6.0
    uniform_weight: NonNegative = 1.0
    tau: Past = 0

    regularised = True
    weighed: ClassVar[frozenset[Term]] = frozenset({"robust"})

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """``right`` and ``wrong``, of one attack."""
        model = self.criterion.scaled(model, settings)
        right, wrong = at_the_boundary(attack, model, batch.attack_inputs(rng), self.tau)
        return {"right": right, "wrong": wrong}

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """The first two parts as the term ``robust``, the others as ``uniform``."""
        model = self.criterion.scaled(model, settings)
        clean, right, wrong = model(batch.x), model(points["right"]), model(points["wrong"])
        beta = settings.of("beta", batch.y)
        pull = divergence(clean, wrong) * (self.beta if beta is None else beta)
        terms = {
            "robust": self.criterion(right, batch.y, settings) + pull,
            "uniform": self.uniform_weight * (from_uniform(right) + from_uniform(wrong)),
        }
        return Step(terms, clean_logits=clean, robust_logits=wrong)


def from_uniform(logits: Tensor) -> Tensor:
    """KL(softmax(logits) ‖ U) = log C - the softmax's entropy, (N,)."""
    logs = logits.log_softmax(1)
    return math.log(logits.shape[1]) + (logs.exp() * logs).sum(1)
