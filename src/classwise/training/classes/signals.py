"""Per-class settings, signals, and running sums over the images of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from classwise.attacks.losses import cross_entropy

Term = Literal["clean", "robust"]
"""A term of the loss with class weights. TRADES has both, AT only ``robust``, standard training only ``clean``."""


@dataclass(frozen=True)
class ClassSettings:
    """The class settings of an epoch, tensors on the device; None means the constant of the recipe.

    In training, ``epsilon`` is never None, nor is ``beta`` of an objective with a regulariser: both begin as the
    constant of the recipe for each class, which schedules multiply.

    Args:
        epsilon: radius, (C,).
        step_size: step size of the inner attack, (C,).
        beta: weight of the regulariser, (C,).
        clean_weight: weight of the clean term, (C,).
        robust_weight: weight of the robust term, (C,).
        sampling: probability of sampling an image of the class, relative to the class frequency, (C,).
        logit_margin: logit margin of the criterion, (C,).
        logit_adjustment: what the criterion adds to the logits, (C,).
        target: distribution of attack targets, (C, C), rows: true classes; a zero row means untargeted.
        pair_weight: weights of confusions, (C, C), rows: true classes, columns: predictions.
        scale: inverse temperature of the logits, ().
        clean_temperature: temperature of a teacher's soft labels for clean images, (C,).
        robust_temperature: the same for attacked images, (C,).
    """

    epsilon: Tensor | None = None
    step_size: Tensor | None = None
    beta: Tensor | None = None
    clean_weight: Tensor | None = None
    robust_weight: Tensor | None = None
    sampling: Tensor | None = None
    logit_margin: Tensor | None = None
    logit_adjustment: Tensor | None = None
    target: Tensor | None = None
    pair_weight: Tensor | None = None
    scale: Tensor | None = None
    clean_temperature: Tensor | None = None
    robust_temperature: Tensor | None = None

    def of(self, name: str, y: Tensor) -> Tensor | None:
        """Return a setting for each image of a batch, (N, ...), given labels (N,); None if the setting is None."""
        values: Tensor | None = getattr(self, name)
        return None if values is None else values[y]


Signals = Mapping[str, Tensor]
"""Measurements of an epoch, by their names in `MEASURED`: float (C,) or (C, C), NaN for a class without images."""

ALWAYS = frozenset({"train.clean", "train.robust"})
"""The signals that every training measures."""
MEASURED: Mapping[str, str] = {
    "train.count": "number of training images",
    "train.clean": "accuracy on the clean training batches, during training; NaN if the objective has no clean pass",
    "train.robust": "accuracy on the attacked training batches, during training",
    "train.loss": "mean of the weighted loss",
    "train.clean_error": "mean cross-entropy of the logits on clean images",
    "train.robust_error": "mean cross-entropy of the logits on attacked images",
    "train.steps": "mean number of steps of the inner attack at whose start an image is classified correctly; measured "
    "only by objectives that distil a teacher",
    "train.confusion": "(C, C), rows: true classes; counts of predictions under attack",
    "train.confidence": "(C, C), rows: true classes; mean softmax under attack",
    "valid.count": "number of images of the validation split",
    "valid.clean": "clean accuracy on the validation split",
    "valid.robust": "accuracy under the validation attack",
    "valid.loss": "mean cross-entropy of the logits on clean images",
    "valid.divergence": "mean KL divergence from the clean to the attacked softmax",
    "valid.soft": "mean of sigmoid((p_y - max other p) / 0.1) at the last point of the validation attack, with the "
    "probabilities p and the label y",
    "valid.average_confidence": "(C, C), rows: true classes; mean softmax under the validation attack, of the averaged "
    "weights, or of the online model without an average; for schedules only",
}
"""Every signal that a schedule or an averager can read, with its meaning; a value of each class, (C,), or (C, C)."""
OPTIONAL = frozenset({"train.steps"})
"""The signals that only some objectives measure."""
ATTACKED = frozenset({"train.robust", "train.robust_error", "train.confusion", "train.confidence"})
"""The signals that an objective without an inner attack does not measure."""
_COUNTS = {
    "clean": "clean_count",
    "clean_error": "clean_count",
    "robust": "robust_count",
    "robust_error": "robust_count",
    "loss": "count",
    "steps": "count",
}
"""The sums of means over the images of a class, with the sum that counts the images."""


def class_sums(values: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sum values of images, (N, ...), by class: the sums, (C, ...), and the number of images of each class, (C,)."""
    like: dict[str, Any] = {"dtype": values.dtype, "device": values.device}
    sums = torch.zeros(classes, *values.shape[1:], **like).index_add_(0, y, values)
    return sums, torch.zeros(classes, **like).index_add_(0, y, torch.ones_like(y, dtype=values.dtype))


class ClassSums:
    """Running per-class sums of an epoch, on the device."""

    def __init__(self, classes: int, reads: frozenset[str], device: torch.device) -> None:
        self.classes = classes
        means = [name for name in _COUNTS if f"train.{name}" in reads | ALWAYS]
        names = ("count", "clean_count", "robust_count", *means)
        self.sums = {name: torch.zeros(classes, device=device) for name in names}
        if "train.confusion" in reads:
            self.sums["confusion"] = torch.zeros(classes * classes, device=device)
        if "train.confidence" in reads:
            self.sums["confidence"] = torch.zeros(classes, classes, device=device)

    def add(
        self,
        y: Tensor,
        clean_logits: Tensor | None,
        robust_logits: Tensor | None,
        loss: Tensor | None = None,
        steps: Tensor | None = None,
    ) -> None:
        """Add a batch.

        Args:
            y: labels, int64 (N,).
            clean_logits: logits on the clean images, (N, C), or None.
            robust_logits: logits on the attacked images, (N, C), or None.
            loss: the loss of each image, (N,), or None.
            steps: the steps of the inner attack at whose start each image was classified correctly, (N,), or None.
        """
        ones = torch.ones(len(y), device=y.device)
        self.sums["count"].index_add_(0, y, ones)
        for name, logits in (("clean", clean_logits), ("robust", robust_logits)):
            if logits is not None:
                self.sums[f"{name}_count"].index_add_(0, y, ones)
                self.sums[name].index_add_(0, y, (logits.argmax(1) == y).float())
                if f"{name}_error" in self.sums:
                    error = cross_entropy(logits.detach().float(), y)
                    self.sums[f"{name}_error"].index_add_(0, y, error)
        for name, values in (("loss", loss), ("steps", steps)):
            if name in self.sums and values is not None:
                self.sums[name].index_add_(0, y, values.detach().float())
        if "confusion" in self.sums and robust_logits is not None:
            self.sums["confusion"].index_add_(0, y * self.classes + robust_logits.argmax(1), ones)
        if "confidence" in self.sums and robust_logits is not None:
            self.sums["confidence"].index_add_(0, y, robust_logits.detach().float().softmax(1))

    def signals(self) -> dict[str, Tensor]:
        """Return the per-class means so far, NaN for a class without images or a quantity that was not measured."""
        means = {"train.count": self.sums["count"]}
        for name, count_name in _COUNTS.items():
            if name in self.sums:
                count = self.sums[count_name]
                means[f"train.{name}"] = torch.where(count > 0, self.sums[name] / count, torch.nan)
        if "confusion" in self.sums:
            means["train.confusion"] = self.sums["confusion"].view(self.classes, self.classes)
        if "confidence" in self.sums:
            count = self.sums["robust_count"][:, None]
            means["train.confidence"] = torch.where(count > 0, self.sums["confidence"] / count, torch.nan)
        return means
