"""The interface of criteria: classification losses of logits and labels.

The objective provides the base loss: the cross-entropy, or MART's boosted cross-entropy. The criterion sets the scale
of the logits, for the inner attack, the divergences and the loss, and the margin of the label's logit, for the loss
only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from classwise.attacks.losses import cross_entropy
from classwise.core.compute.precision import Forward
from classwise.core.settings.description import Described
from classwise.training.classes.signals import ClassSettings

Base = Callable[[Tensor, Tensor], Tensor]
"""Logits (N, C) and labels (N,) to losses (N,)."""


class Criterion(Described, ABC):
    """Base class of criteria. Subclasses are frozen dataclasses (`classwise.core.settings.config.configurable`)."""

    #: Whether the network must return cosines, as the models of the zoo do with ``head: cosine``.
    cosines: ClassVar[bool] = False

    @property
    def attack_smoothing(self) -> float:
        """The label smoothing of the cross-entropy that the inner attack maximises, in [0, 1]; by default none."""
        return 0.0

    def scaled(self, model: Forward, settings: ClassSettings) -> Forward:
        """Return the model with its outputs multiplied by the class setting ``scale``, for every pass."""
        return model if settings.scale is None else rescaled(model, settings.scale)

    @abstractmethod
    def __call__(self, logits: Tensor, y: Tensor, settings: ClassSettings, base: Base = cross_entropy) -> Tensor:
        """Compute the loss of each image, (N,).

        Args:
            logits: outputs of the scaled model, (N, C).
            y: labels, int64 (N,).
            settings: the current class settings.
            base: the base loss of the objective.
        """


def rescaled(model: Forward, scale: float | Tensor) -> Forward:
    """Return the model with its outputs multiplied by ``scale``."""

    def run(x: Tensor) -> Tensor:
        return model(x) * scale

    return run
