"""TRADES (Zhang et al., ICML 2019, eq. 5)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.losses import divergence
from classwise.core.config import NonNegative, configurable
from classwise.core.description import Passes
from classwise.core.precision import Forward
from classwise.core.rng import CounterRNG
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Objective, Step, TrainingBatch, with_fields


@configurable
class Trades(Objective):
    """CE(f(x), y) + beta KL(S f(x) ‖ S f(x')), x' maximising the divergence from a start 0.001 N(0, 1) away.

    Args:
        beta: the weight of the divergence; a class schedule may set one per class.
    """

    source = ("zhang2019theoretically, eq. 5",)
    changes: ClassVar[tuple[str, ...]] = ("loss",)
    example = "trades:beta=6"
    cost = Passes(forward=2, to_weights=2)
    crafting = Passes(forward=1)

    beta: NonNegative = 6.0

    regularised = True

    def inner(self, attack: Attack) -> Attack:
        """The recipe's attack, maximising the divergence from TRADES' start."""
        return with_fields(attack, "trades", objective="kl", random_init="normal")

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """``x'``, from the inner attack against the clean logits."""
        model = self.criterion.scaled(model, settings)
        with torch.no_grad():
            reference = model(batch.x)
        return {"robust": attack.run(model, batch.attack_inputs(rng, reference=reference))}

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """The clean cross-entropy, and beta times the divergence."""
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        beta = settings.of("beta", batch.y)
        terms = {
            "clean": self.criterion(clean, batch.y, settings),
            "robust": divergence(clean, robust) * (self.beta if beta is None else beta),
        }
        return Step(terms, clean_logits=clean, robust_logits=robust)
