"""TRADES (Zhang et al., ICML 2019, eq. 5)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.losses import divergence
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import NonNegative, configurable
from classwise.core.settings.description import PassCounts
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Objective, Step, TrainingBatch, clean_logits, with_fields


@configurable
class Trades(Objective):
    """TRADES: CE(f(x), y) + beta KL(S f(x) ‖ S f(x')), x' maximising the divergence.

    The attack starts at x + 0.001 N(0, 1).

    With ``scaled``, both terms are divided by 1 + beta: (1 - b) CE(f(x), y) + b KL(S f(x) ‖ S f(x')) with b = beta /
    (1 + beta), the TRADES of CFA's public code and the loss of the schedule ``ccr`` for beta_k = beta. The unscaled
    gradient is 1 + beta times larger, which acts on SGD with weight decay like a larger learning rate with a smaller
    decay.

    Args:
        beta: the weight of the divergence; a class schedule may set it per class.
        scaled: whether to divide the loss of an image by 1 + beta; refused with ``ccr``, which does it.
    """

    source = ("zhang2019theoretically, eq. 5",)
    changes: ClassVar[tuple[str, ...]] = ("loss",)
    example = "trades:beta=6"
    cost = PassCounts(forward=2, to_weights=2)

    beta: NonNegative = 6.0
    scaled: bool = False

    regularised = True

    @property
    def attack_overhead(self) -> PassCounts:
        """The clean logits."""
        return PassCounts(forward=1)

    @property
    def divides_by_beta(self) -> bool:
        """The field ``scaled``."""
        return self.scaled

    def inner(self, attack: Attack) -> Attack:
        """Return the recipe's attack on the divergence, with the random initialisation of TRADES."""
        return with_fields(attack, "trades", objective="kl", random_init="normal")

    def reference(self, model: Forward, batch: TrainingBatch, settings: ClassSettings) -> Tensor | None:
        """Return the clean logits."""
        return clean_logits(model, batch)

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the clean cross-entropy, and beta times the divergence."""
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        terms = {
            "clean": self.criterion(clean, batch.y, settings),
            "robust": divergence(clean, robust) * self.betas(batch, settings),
        }
        return Step(self.divided(terms, batch, settings), clean_logits=clean, robust_logits=robust)

    def divided(self, terms: dict[str, Tensor], batch: TrainingBatch, settings: ClassSettings) -> dict[str, Tensor]:
        """Return the terms divided by 1 + beta if ``scaled``, else unchanged."""
        if not self.scaled:
            return terms
        factor = 1 / (1 + self.betas(batch, settings))
        return {name: term * factor for name, term in terms.items()}
