"""TRADES (Zhang et al., ICML 2019, eq. 5)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.losses import divergence
from classwise.core.config import NonNegative, configurable
from classwise.core.description import PassCounts
from classwise.core.precision import Forward
from classwise.core.rng import CounterRNG
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Objective, Step, TrainingBatch, with_fields


@configurable
class Trades(Objective):
    """TRADES: CE(f(x), y) + beta KL(S f(x) ‖ S f(x')), x' maximising the divergence.

    The attack starts at x + 0.001 N(0, 1).

    Args:
        beta: the weight of the divergence; a class schedule may set it per class.
    """

    source = ("zhang2019theoretically, eq. 5",)
    changes: ClassVar[tuple[str, ...]] = ("loss",)
    example = "trades:beta=6"
    cost = PassCounts(forward=2, to_weights=2)
    attack_overhead = PassCounts(forward=1)

    beta: NonNegative = 6.0

    regularised = True

    def inner(self, attack: Attack) -> Attack:
        """Return the recipe's attack on the divergence, with the random initialisation of TRADES."""
        return with_fields(attack, "trades", objective="kl", random_init="normal")

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """Compute ``x'`` by the inner attack on the divergence from the clean logits."""
        model = self.criterion.scaled(model, settings)
        with torch.no_grad():
            reference = model(batch.x)
        return {"robust": attack.run(model, batch.attack_inputs(rng, reference=reference))}

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the clean cross-entropy, and beta times the divergence."""
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        beta = settings.of("beta", batch.y)
        terms = {
            "clean": self.criterion(clean, batch.y, settings),
            "robust": divergence(clean, robust) * (self.beta if beta is None else beta),
        }
        return Step(terms, clean_logits=clean, robust_logits=robust)
