"""Adversarial training that asks for a logit margin of each class."""

from __future__ import annotations

from torch import Tensor

from classwise.attacks.losses import cross_entropy
from classwise.compute import Forward
from classwise.settings import settings
from classwise.training.classes import ClassSettings
from classwise.training.objectives.adversarial import AdversarialTraining
from classwise.training.objectives.base import Step, TrainingBatch


def with_margin(logits: Tensor, y: Tensor, settings: ClassSettings) -> Tensor:
    """S (z - m_y e_y), (N, C): the class settings ``logit_margin`` and ``scale``, each where it is set."""
    margin = settings.of("logit_margin", y)
    if margin is not None:
        logits = logits.scatter_add(1, y[:, None], -margin[:, None].to(logits.dtype))
    return logits if settings.scale is None else logits * settings.scale


@settings
class MarginAdversarialTraining(AdversarialTraining):
    """CE(s (f(x') - m_y e_y), y), with m and s of a class schedule such as ``ldam``; x' as in AT, without them."""

    takes_margin = True

    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """The cross-entropy at ``x'`` beyond the margin."""
        logits = model(points["robust"])
        asked = with_margin(logits, batch.y, settings)
        return Step({"robust": cross_entropy(asked, batch.y)}, robust_logits=logits)
