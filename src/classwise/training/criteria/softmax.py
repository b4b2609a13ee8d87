"""Criteria on scaled logits with a margin: cross-entropy, hypersphere embedding, focal loss, custom functions."""

from __future__ import annotations

import functools
from typing import Annotated, Any, ClassVar

import pydantic
import torch
from torch import Tensor

from classwise.attacks.losses import cross_entropy
from classwise.core.compute.precision import Forward
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import NonNegative, Positive, Share, configurable
from classwise.training.classes.signals import ClassSettings
from classwise.training.criteria import CRITERIA
from classwise.training.criteria.base import Base, Criterion, rescaled


@configurable
class Softmax(Criterion):
    """base(s (f - m e_y), y), with inverse temperature s and a margin m subtracted from the label's logit.

    Args:
        scale: s; the class setting ``scale`` overrides it.
        margin: m, in units of the network's outputs; the class setting ``logit_margin`` overrides it per class.

    The class setting ``logit_adjustment``, (C,), is added to the scaled outputs, for the loss only.
    """

    source: ClassVar[tuple[str, ...]] = ()
    example = "softmax"

    scale: Positive = 1.0
    margin: NonNegative = 0.0

    def scaled(self, model: Forward, settings: ClassSettings) -> Forward:
        """Return the model with its outputs multiplied by s."""
        if settings.scale is None and self.scale != 1:
            return rescaled(model, self.scale)
        return super().scaled(model, settings)

    def adjusted(self, logits: Tensor, settings: ClassSettings) -> Tensor:
        """Return the logits, (N, C), with the class setting ``logit_adjustment``."""
        return logits if settings.logit_adjustment is None else logits + settings.logit_adjustment

    def __call__(self, logits: Tensor, y: Tensor, settings: ClassSettings, base: Base = cross_entropy) -> Tensor:
        """Compute the base loss of the adjusted logits, with s m subtracted from the label's logit."""
        logits = self.adjusted(logits, settings)
        margin = settings.of("logit_margin", y)
        if margin is None and self.margin == 0:
            return base(logits, y)
        scale = self.scale if settings.scale is None else settings.scale
        lower = scale * (self.margin if margin is None else margin) * torch.ones_like(y, dtype=logits.dtype)
        return base(logits.scatter_add(1, y[:, None], -lower[:, None]), y)


@configurable
class Hypersphere(Softmax):
    """Hypersphere embedding: CE(s (c - m e_y), y), c the cosines of the normalised feature and class weights.

    The inner attack and the divergence of TRADES use s c without the margin. The network returns c. Pang et al.,
    NeurIPS 2020, eq. 7.

    Args:
        scale: s.
        margin: m, subtracted from the label's cosine.
    """

    source = ("pang2020boosting, eq. 7",)
    changes = ("scale", "margin", "network")
    example = "he:scale=15,margin=0.2"

    scale: Positive = 15.0
    margin: NonNegative = 0.2

    cosines = True


@configurable
class Focal(Softmax):
    """Focal loss: the base loss times (1 - p_y)^gamma, p the softmax of the scaled outputs.

    Lin et al., ICCV 2017, eq. 4. A margin applies to the base loss only.

    Args:
        scale: s.
        margin: m.
        gamma: the focusing parameter; 0 gives the base loss.
    """

    source = ("lin2017focal, eq. 4",)
    changes = ("loss",)
    example = "focal:gamma=2"

    gamma: NonNegative = 2.0

    def __call__(self, logits: Tensor, y: Tensor, settings: ClassSettings, base: Base = cross_entropy) -> Tensor:
        """Compute the focal loss; 1 - p_y is a difference of log-sum-exps, so that its powers have finite gradients."""
        outputs = self.adjusted(logits, settings)
        others = outputs.scatter(1, y[:, None], -torch.inf).logsumexp(1)
        factor = (self.gamma * (others - outputs.logsumexp(1))).exp()
        return factor * super().__call__(logits, y, settings, base)


@configurable
class LabelSmoothing(Softmax):
    """Label smoothing: (1 - a) base + a CE to the uniform distribution over all C classes.

    With the cross-entropy as base loss, this is the cross-entropy to targets 1 - a + a/C (label) and a/C (others).
    Szegedy et al., CVPR 2016, section 7. A margin applies to the base loss only.

    Args:
        scale: s.
        margin: m.
        smoothing: a; 0 gives the base loss.
        attack: whether the inner attack maximises the smoothed cross-entropy; otherwise the plain one.
    """

    source = ("szegedy2016rethinking, section 7",)
    changes = ("loss",)
    example = "label-smoothing:smoothing=0.1"

    smoothing: Share = 0.1
    attack: bool = False

    @property
    def attack_smoothing(self) -> float:
        """The smoothing, if the inner attack maximises the smoothed cross-entropy."""
        return self.smoothing if self.attack else 0.0

    def __call__(self, logits: Tensor, y: Tensor, settings: ClassSettings, base: Base = cross_entropy) -> Tensor:
        """Compute the smoothed loss."""
        outputs = self.adjusted(logits, settings)
        uniform = outputs.logsumexp(1) - outputs.mean(1)
        return (1 - self.smoothing) * super().__call__(logits, y, settings, base) + self.smoothing * uniform


def _function(path: str) -> str:
    """The path, if it is that of a function of two arguments."""
    if isinstance(CRITERIA.load(path), type):
        raise ClasswiseError(f"criterion {path!r} is a class; set criterion = {path!r}")
    return path


@configurable
class Function(Softmax):
    """A function of logits (N, C) and labels (N,) that returns losses (N,), in place of the objective's base loss.

    ``criterion: "package.module:function"`` is short for ``criterion: {name: function, path: ...}``.

    Args:
        scale: s.
        margin: m.
        path: ``"package.module:function"``.
    """

    source: ClassVar[tuple[str, ...]] = ()
    no_source = "the loss is that of the function"
    changes = ("loss",)
    example = "function:path=classwise.attacks.losses:cross_entropy"

    path: Annotated[str, pydantic.AfterValidator(_function)]

    @functools.cached_property
    def _loss(self) -> Any:
        return CRITERIA.load(self.path)

    def __call__(self, logits: Tensor, y: Tensor, settings: ClassSettings, base: Base = cross_entropy) -> Tensor:
        """Compute the function's loss of the logits, with s m subtracted from the label's logit.

        Raises:
            ClasswiseError: if the function returns anything but one loss for each image.
        """
        losses = super().__call__(logits, y, settings, self._loss)
        if not isinstance(losses, Tensor) or losses.shape != y.shape:
            found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise ClasswiseError(
                f"criterion {self.path!r} returned {found} for {len(y)} images; return one loss for each image, a "
                f"tensor of shape ({len(y)},), as torch losses do with reduction='none'"
            )
        return losses
