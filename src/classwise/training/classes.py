"""Per-class settings, signals, and sums over the images of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Term = Literal["clean", "robust"]
"""A term that class weights multiply: TRADES has both, AT only the robust one, standard training only the clean."""


@dataclass(frozen=True)
class ClassSettings:
    """The class settings of an epoch, a number per class on the device; None means the recipe's constant.

    Args:
        epsilon: radius, (C,).
        step_size: step of the inner attack, (C,).
        beta: weight of the regulariser, (C,).
        clean_weight: factor of the clean term, (C,).
        robust_weight: factor of the robust term, (C,).
        sampling: probability of drawing an image of the class, relative to its share, (C,).
        logit_margin: margin that a criterion asks for, (C,).
        target: law of attack targets, (C, C); a zero row means untargeted.
        pair_weight: weights of confusions, (C, C), truth by prediction.
        scale: inverse temperature of the logits, ().
    """

    epsilon: Tensor | None = None
    step_size: Tensor | None = None
    beta: Tensor | None = None
    clean_weight: Tensor | None = None
    robust_weight: Tensor | None = None
    sampling: Tensor | None = None
    logit_margin: Tensor | None = None
    target: Tensor | None = None
    pair_weight: Tensor | None = None
    scale: Tensor | None = None

    def of(self, name: str, y: Tensor) -> Tensor | None:
        """The per-class setting spread over the images of a batch, (N,); None where the constant holds."""
        values: Tensor | None = getattr(self, name)
        return None if values is None else values[y]


Signals = Mapping[str, Tensor]
"""What an epoch measured, by name.

Per class, float (C,), NaN where a class had no image: ``train.clean`` ``train.robust`` (accuracy on the training
batches as they were), ``train.loss`` (mean of the reduced terms), ``valid.clean`` ``valid.robust``, ``valid.loss``
(mean clean cross-entropy), ``valid.divergence`` (mean KL from the clean to the attacked softmax), ``valid.soft``
(mean of sigmoid((p_y - max other p) / 0.1) at the last point of the validation attack). Counts (C,):
``train.count`` ``valid.count``. Matrices (C, C), rows by truth: ``train.confusion`` (counts of predictions under
attack), ``train.confidence`` (mean softmax under attack, NaN rows where a class had no image),
``valid.average_confidence`` (the same of the averaged weights, or of the online model where there is none, on the
validation split).
"""

ALWAYS = frozenset({"train.clean", "train.robust"})
MEASURED = ALWAYS | {
    "train.count",
    "train.loss",
    "train.confusion",
    "train.confidence",
    "valid.count",
    "valid.clean",
    "valid.robust",
    "valid.loss",
    "valid.divergence",
    "valid.soft",
    "valid.average_confidence",
}
"""Every signal that a schedule or an averager may ask for."""


class ClassSums:
    """Sums over the images that an epoch has seen, on the device; they add up over steps and processes."""

    def __init__(self, classes: int, reads: frozenset[str], device: torch.device) -> None:
        self.classes = classes
        self.sums = {
            "count": torch.zeros(classes, device=device),
            "clean": torch.zeros(classes, device=device),
            "clean_count": torch.zeros(classes, device=device),
            "robust": torch.zeros(classes, device=device),
            "robust_count": torch.zeros(classes, device=device),
        }
        if "train.loss" in reads:
            self.sums["loss"] = torch.zeros(classes, device=device)
        if "train.confusion" in reads:
            self.sums["confusion"] = torch.zeros(classes * classes, device=device)
        if "train.confidence" in reads:
            self.sums["confidence"] = torch.zeros(classes, classes, device=device)

    def add(
        self, y: Tensor, clean_logits: Tensor | None, robust_logits: Tensor | None, loss: Tensor | None = None
    ) -> None:
        """Add a batch: labels (N,), logits (N, C) of the clean and the attacked images, the loss of each image."""
        ones = torch.ones(len(y), device=y.device)
        self.sums["count"].index_add_(0, y, ones)
        for name, logits in (("clean", clean_logits), ("robust", robust_logits)):
            if logits is not None:
                self.sums[f"{name}_count"].index_add_(0, y, ones)
                self.sums[name].index_add_(0, y, (logits.argmax(1) == y).float())
        if "loss" in self.sums and loss is not None:
            self.sums["loss"].index_add_(0, y, loss.detach().float())
        if "confusion" in self.sums and robust_logits is not None:
            self.sums["confusion"].index_add_(0, y * self.classes + robust_logits.argmax(1), ones)
        if "confidence" in self.sums and robust_logits is not None:
            self.sums["confidence"].index_add_(0, y, robust_logits.detach().float().softmax(1))

    def signals(self) -> dict[str, Tensor]:
        """Per-class means so far, NaN where a class (or a quantity) was not seen."""
        nothing = torch.full_like(self.sums["count"], torch.nan)
        found = {"train.count": self.sums["count"]}
        for name in ("clean", "robust"):
            count = self.sums[f"{name}_count"]
            found[f"train.{name}"] = torch.where(count > 0, self.sums[name] / count, nothing)
        if "loss" in self.sums:
            found["train.loss"] = torch.where(self.sums["count"] > 0, self.sums["loss"] / self.sums["count"], nothing)
        if "confusion" in self.sums:
            found["train.confusion"] = self.sums["confusion"].view(self.classes, self.classes)
        if "confidence" in self.sums:
            count = self.sums["robust_count"][:, None]
            found["train.confidence"] = torch.where(count > 0, self.sums["confidence"] / count, torch.nan)
        return found
