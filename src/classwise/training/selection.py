"""Rules that select the best epoch on the validation split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import torch
from torch import Tensor

from classwise.training import SELECTIONS
from classwise.training.worst_classes import Worst, exact_accuracies, resolve_worst, worst_accuracy

Rule = Callable[[Tensor, Tensor], float]
"""A function of the per-class robust accuracy (C,), NaN for absent classes, and the counts (C,), to a score."""


def _overall(robust: Tensor, count: Tensor) -> Fraction:
    sizes = [int(size) for size in count[~robust.isnan()].tolist()]
    correct = (share * size for share, size in zip(exact_accuracies(robust), sizes, strict=True))
    return sum(correct, start=Fraction(0)) / sum(sizes)


def _worst(robust: Tensor, worst: Worst) -> Fraction | float:
    return worst_accuracy(exact_accuracies(robust), worst)


# The scores are rounded once, so that epochs with equal scores have equal floats.


def overall_plus_worst(robust: Tensor, count: Tensor) -> float:
    """Overall plus worst-class robust accuracy (CFA's rule)."""
    return float(_overall(robust, count) + _worst(robust, "class"))


def overall_plus_worst_fifth(robust: Tensor, count: Tensor) -> float:
    """Overall robust accuracy plus the mean of the worst fifth of the classes (CFA's rule for Tiny-ImageNet)."""
    return float(_overall(robust, count) + _worst(robust, "fifth"))


def by_number_of_classes(robust: Tensor, count: Tensor) -> float:
    """CFA's rule: ``overall+worst`` of at most 20 classes, ``overall+worst-fifth`` of more."""
    return float(_overall(robust, count) + _worst(robust, "auto"))


def overall(robust: Tensor, count: Tensor) -> float:
    """Overall robust accuracy."""
    return float(_overall(robust, count))


def worst(robust: Tensor, count: Tensor) -> float:
    """Worst-class robust accuracy."""
    del count
    return float(_worst(robust, "class"))


def last(robust: Tensor, count: Tensor) -> float:
    """Constant score: of ties the last epoch is selected."""
    del robust, count
    return torch.inf


@dataclass(frozen=True)
class WithinError:
    """Select the last epoch within one standard error of the best (ours).

    The score J is the overall mean plus the worst class mean of u. For an image, u is sigmoid((p_y - max other p) /
    0.1) at the last point of the validation attack, averaged over the epoch and up to ``window`` - 1 previous ones.
    All epochs use the same images and the same random initialisation, so the standard error of a difference is
    computed from the paired differences per image. The largest J is a biased estimate, since it is selected, and is
    not saved.

    Args:
        window: number of epochs in the mean.
    """

    window: int = 3

    def select(self, state: Mapping[str, Tensor], scores: Tensor, y: Tensor) -> tuple[dict[str, Tensor], bool]:
        """Decide whether the newest epoch is selected.

        An epoch that is not selected now cannot be selected later: the required score only increases, and of the
        epochs that reach it the last is selected.

        Args:
            state: the state returned for the previous epoch; empty before the first.
            scores: u on the validation split, (N,).
            y: labels, int64 (N,).

        Returns:
            The new state (tensors only), and whether the epoch is selected.
        """
        recent = scores.double()[None]
        if state:
            recent = torch.cat([state["recent"], recent])[-self.window :]
        smooth = recent.mean(0)
        best = state.get("best", smooth)
        lag = _contributions(best, y) - _contributions(smooth, y)
        if float(lag.sum()) <= 0:
            return {"recent": recent, "best": smooth}, True
        return {"recent": recent, "best": best}, float(lag.sum()) <= _standard_error_of_sum(lag, y)


within_error = WithinError()


@dataclass(frozen=True)
class AtFraction:
    """Select the epoch at a fraction of the run, independently of validation accuracy (iclr21 section 3).

    The paper takes epoch 75 of 100, and on ImageNet epoch 14 of 15.

    Args:
        share: the fraction of the epochs.
    """

    share: float

    def selects(self, epoch: int, epochs: int) -> bool:
        """Return whether an epoch (from 0) is selected, given the number of epochs."""
        return epoch + 1 == max(1, round(self.share * epochs))


three_quarters = AtFraction(0.75)
fourteen_fifteenths = AtFraction(14 / 15)


def resolve_selection(name: str, classes: int) -> str:
    """Return the name of a selection rule, with ``"auto"`` replaced by the choice for a number of classes."""
    if name != "auto":
        return name
    return "overall+worst" if resolve_worst("auto", classes) == "class" else "overall+worst-fifth"


Selection = Rule | WithinError | AtFraction


def load_selection(name: str) -> Selection:
    """Return the selection rule of a name, or of a path ``"package.module:name"``.

    Raises:
        ClasswiseError: if it does not exist.
    """
    return cast("Selection", SELECTIONS.load(name))


def _contributions(scores: Tensor, y: Tensor) -> Tensor:
    """Compute the contribution of each image to J = overall + worst class, (N,); the sum is J."""
    count = torch.bincount(y).double()
    means = torch.zeros_like(count).index_add_(0, y, scores) / count  # NaN for classes without images
    worst = means.nan_to_num(nan=torch.inf).argmin()
    return scores / len(scores) + torch.where(y == worst, scores / count[worst], 0.0)


def _standard_error_of_sum(values: Tensor, y: Tensor) -> float:
    """Compute the standard error of a sum over images, stratified by class; a class of one image contributes 0."""
    count = torch.bincount(y).double()
    means = torch.zeros_like(count).index_add_(0, y, values) / count.clamp_min(1)
    squares = torch.zeros_like(count).index_add_(0, y, (values - means[y]).square())
    return float((count * squares / (count - 1).clamp_min(1)).sum().sqrt())
