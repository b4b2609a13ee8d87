"""TRADES (Zhang et al., ICML 2019, eq. 5), and its extensions CSR (Jin et al., 2025) and TRIX (Medi et al., 2025)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.losses import divergence
from classwise.core.compute.precision import Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import NonNegative, Share, configurable
from classwise.core.settings.description import PassCounts
from classwise.training.classes.signals import ClassSettings, class_sums
from classwise.training.classes.similarity_weights import class_weights
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

    uses = Objective.uses | {"beta"}

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
        return with_fields(attack, objective="kl", random_init="normal")

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


@configurable
class ConfusionWeighted(Trades):
    """clean_weight CE(f(x), y) + beta KL(S f(x) ‖ S f(x')) + confusion_weight G[y, argmax f(x')] CE(f(x'), y).

    G is the class setting ``pair_weight`` of the schedule ``csr``; 1 by default.

    Args:
        clean_weight: the weight of the clean cross-entropy.
        confusion_weight: the weight of the third term.
        start_fraction: the fraction of training after which this loss applies; TRADES before.
    """

    source = ("jin2025enhancing",)
    example = "csr:beta=6,clean_weight=0.7,confusion_weight=0.3"

    clean_weight: NonNegative = 0.7
    confusion_weight: NonNegative = 0.3
    start_fraction: Share = 0.0

    uses = Trades.uses | {"pair_weight"}

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the three terms."""
        if batch.progress < self.start_fraction:
            return super().step(model, batch, points, settings)
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        confused = self.confusion_weight * self.criterion(robust, batch.y, settings)
        if settings.pair_weight is not None:
            confused = confused * settings.pair_weight[batch.y, robust.argmax(1)]
        terms = {
            "clean": self.clean_weight * self.criterion(clean, batch.y, settings),
            "robust": divergence(clean, robust) * self.betas(batch, settings),
            "confused": confused,
        }
        return Step(self.divided(terms, batch, settings), clean_logits=clean, robust_logits=robust)


@configurable
class Trix(Trades):
    """TRADES with targeted attacks on images of the easy classes; targets are uniform over the other classes.

    A class is easy if its weight by DAFA's formula, on the clean softmax of the batch, is below the mean weight over
    the images of the batch. A targeted attack minimises the cross-entropy to its target. The schedule ``dafa``
    implements the weights and radii of TRIX.

    Args:
        beta: the weight of the divergence; a class schedule may set it per class.
        strength: lambda of DAFA's formula.
    """

    source = ("medi2025trix",)
    changes = ("loss", "target")
    example = "trix:beta=6,strength=1"

    strength: NonNegative = 1.0

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """Compute ``x'`` by the inner attack, targeted for images of easy classes."""
        model = self.criterion.scaled(model, settings)
        reference = clean_logits(model, batch)
        classes = reference.shape[1]
        others = rng.child("target").integers(batch.index, (), classes - 1)
        easy = self.easy(batch.gather(reference), batch.gather(batch.y))[batch.rows]
        target = torch.where(easy, (batch.y + 1 + others) % classes, -1)
        targeted = dataclasses.replace(batch, target=target)
        return {"robust": attack.run(model, targeted.attack_inputs(rng, reference=reference))}

    def easy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return whether the class of each image is easy, bool (N,).

        Args:
            logits: logits on the clean images, (N, C).
            y: labels, int64 (N,).
        """
        total, count = class_sums(logits.detach().float().softmax(1), y, logits.shape[1])
        confidence = torch.where(count[:, None] > 0, total / count[:, None], torch.nan)
        weights = class_weights(confidence, self.strength)[y]
        return weights < weights.mean()
