"""Standard training, and adversarial training: AT (Madry et al., 2018), also mixed with clean images, and MART."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.losses import cross_entropy, divergence
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import NonNegative, configurable
from classwise.core.settings.description import PassCounts
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.base import Objective, Step, TrainingBatch, with_fields


@configurable
class Standard(Objective):
    """Standard training: CE(f(x), y) on clean images."""

    source = ("goodfellow2016deep, section 6.2.1",)
    example = "standard"
    cost = PassCounts(forward=1, to_weights=1)
    attacks = False

    weighted_terms = frozenset({"clean"})

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the cross-entropy on the clean images."""
        logits = self.criterion.scaled(model, settings)(batch.x)
        return Step({"clean": self.criterion(logits, batch.y, settings)}, clean_logits=logits)


@configurable
class AdversarialTraining(Objective):
    """Adversarial training: CE(f(x'), y), x' from the inner attack on the cross-entropy."""

    source = ("madry2018towards, eq. 2.1",)
    changes = ("loss",)
    example = "at"
    cost = PassCounts(forward=1, to_weights=1)

    weighted_terms = frozenset({"robust"})

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the cross-entropy at ``x'``."""
        logits = self.criterion.scaled(model, settings)(points["robust"])
        return Step({"robust": self.criterion(logits, batch.y, settings)}, robust_logits=logits)


@configurable
class MixedAdversarialTraining(AdversarialTraining):
    """Mixed adversarial training: clean_weight CE(f(x), y) + robust_weight CE(f(x'), y).

    Args:
        clean_weight: the weight of the clean cross-entropy.
        robust_weight: the weight of the cross-entropy at ``x'``.
    """

    source = ("goodfellow2015explaining",)
    example = "mixed:clean_weight=0.5,robust_weight=0.5"
    cost = PassCounts(forward=2, to_weights=2)

    clean_weight: NonNegative = 0.5
    robust_weight: NonNegative = 0.5

    weighted_terms = frozenset({"clean", "robust"})

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute both cross-entropies."""
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        terms = {
            "clean": self.clean_weight * self.criterion(clean, batch.y, settings),
            "robust": self.robust_weight * self.criterion(robust, batch.y, settings),
        }
        return Step(terms, clean_logits=clean, robust_logits=robust)


@configurable
class Mart(AdversarialTraining):
    """MART: BCE(f(x'), y) + beta KL(S f(x) ‖ S f(x')) (1 - S f(x)_y), x' maximising the cross-entropy.

    The attack starts at x + 0.001 N(0, 1). No factor is detached. The public code adds 1e-4 to 1e-12 inside its
    logarithms; the logarithms here are exact.

    Args:
        beta: the paper's lambda; a class schedule may set it per class.
    """

    source = ("wang2020improving",)
    example = "mart:beta=5"
    cost = PassCounts(forward=2, to_weights=2)

    beta: NonNegative = 5.0

    uses = Objective.uses | {"beta"}

    def inner(self, attack: Attack) -> Attack:
        """Return the recipe's attack on the cross-entropy, with the random initialisation of TRADES."""
        return with_fields(attack, objective="ce", random_init="normal")

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute both parts as one term, ``robust``, since both depend on ``x'``."""
        model = self.criterion.scaled(model, settings)
        clean, robust = model(batch.x), model(points["robust"])
        uncertainty = 1 - clean.softmax(1).gather(1, batch.y[:, None]).squeeze(1)
        boosted = self.criterion(robust, batch.y, settings, boosted_cross_entropy)
        regulariser = divergence(clean, robust) * uncertainty * self.betas(batch, settings)
        return Step({"robust": boosted + regulariser}, clean_logits=clean, robust_logits=robust)


def boosted_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Compute CE - log(1 - max_{k != y} p_k) with p = softmax(logits), (N,).

    With two classes this is twice the cross-entropy. The second part is computed as a difference of log-sum-exps, which
    is finite even if p_k rounds to 1.
    """
    rival = logits.scatter(1, y[:, None], -torch.inf).argmax(1)
    rest = logits.scatter(1, rival[:, None], -torch.inf).logsumexp(1)
    return cross_entropy(logits, y) + logits.logsumexp(1) - rest
