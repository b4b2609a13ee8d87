"""Criteria: how an objective scores logits against labels.

An objective brings its own base loss (the cross-entropy; MART a boosted one); a criterion decides at which scale the
network's outputs become logits, for the inner attack, the divergences and the loss alike, and what margin the label's
logit must clear, in the loss alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from classwise.attacks.losses import cross_entropy
from classwise.core.description import Described
from classwise.core.precision import Forward
from classwise.training.classes import ClassSettings

Base = Callable[[Tensor, Tensor], Tensor]
"""Logits (N, C) and labels (N,) to losses (N,)."""


class Criterion(Described, ABC):
    """Scores logits against labels. Subclasses are frozen dataclasses (`classwise.core.config.settings`)."""

    #: Whether the network must return cosines, as one of the zoo does with ``head: cosine``.
    cosines: ClassVar[bool] = False

    def scaled(self, model: Forward, settings: ClassSettings) -> Forward:
        """The model as the objective and its inner attack see it: its outputs times the class setting ``scale``."""
        return model if settings.scale is None else rescaled(model, settings.scale)

    @abstractmethod
    def __call__(self, logits: Tensor, y: Tensor, settings: ClassSettings, base: Base = cross_entropy) -> Tensor:
        """The loss of each image, (N,).

        Args:
            logits: outputs of the scaled model, (N, C).
            y: labels, int64 (N,).
            settings: the class settings in force.
            base: the loss that the objective would use alone.
        """


def rescaled(model: Forward, scale: float | Tensor) -> Forward:
    """The model with its outputs multiplied by a factor."""

    def run(x: Tensor) -> Tensor:
        return model(x) * scale

    return run
