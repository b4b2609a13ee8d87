"""Rules that select the best epoch, on the validation split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor], float]
"""Validation robust accuracy of each class (C,; NaN for absent classes) and its counts (C,) to a score."""


def _overall(robust: Tensor, count: Tensor) -> float:
    return float((robust.nan_to_num() * count).sum() / count.sum())


def _worst(robust: Tensor) -> float:
    return float(robust[~robust.isnan()].min())


def overall_plus_worst(robust: Tensor, count: Tensor) -> float:
    """Overall plus worst-class robust accuracy (CFA's rule)."""
    return _overall(robust, count) + _worst(robust)


def overall(robust: Tensor, count: Tensor) -> float:
    """Overall robust accuracy."""
    return _overall(robust, count)


def worst(robust: Tensor, count: Tensor) -> float:
    """Worst-class robust accuracy."""
    del count
    return _worst(robust)


def last(robust: Tensor, count: Tensor) -> float:
    """No selection: every epoch ties, and of ties the later wins."""
    del robust, count
    return torch.inf


@dataclass(frozen=True)
class WithinError:
    """The last epoch that is as good as the best, up to the standard error of their difference (ours).

    J = overall + worst of the soft scores u; u of an image is sigmoid((p_y - max other p) / 0.1) at the last point
    of the validation attack, averaged over an epoch and the ``window`` - 1 before it (as many as there are). Every
    epoch meets the same images from the same starts, so what is special about them cancels in a difference; its error
    is that of the paired differences image by image. The largest J is a biased estimate, since it was selected, and is
    not saved.

    Args:
        window: epochs of a mean.
    """

    window: int = 3

    def judge(self, state: Mapping[str, Tensor], scores: Tensor, y: Tensor) -> tuple[dict[str, Tensor], bool]:
        """Whether the newest epoch is selected.

        One that is not can never be selected later: later epochs only raise what it had to reach, and of
        those that reach it the last is selected.

        Args:
            state: what the call for the epoch before returned; empty before the first.
            scores: u on the validation split, (N,).
            y: labels, int64 (N,).

        Returns:
            The new state, tensors only, and the answer.
        """
        recent = scores.double()[None]
        if state:
            recent = torch.cat([state["recent"], recent])[-self.window :]
        smooth = recent.mean(0)
        best = state.get("best", smooth)
        lag = _parts_of_merit(best, y) - _parts_of_merit(smooth, y)
        if float(lag.sum()) <= 0:
            return {"recent": recent, "best": smooth}, True
        return {"recent": recent, "best": best}, float(lag.sum()) <= _error_of_sum(lag, y)


within_error = WithinError()


@dataclass(frozen=True)
class AtShare:
    """The epoch at a share of the run, whatever its validation accuracy (iclr21 section 3: 75 of 100).

    Args:
        share: of the epochs.
    """

    share: float

    def chosen(self, epoch: int, epochs: int) -> bool:
        """Whether an epoch (from 0) of so many is selected."""
        return epoch + 1 == max(1, round(self.share * epochs))


three_quarters = AtShare(0.75)


Selection = Rule | WithinError | AtShare


def _parts_of_merit(scores: Tensor, y: Tensor) -> Tensor:
    """What each image adds to overall + worst class, (N,); both are means, so the sum over the images is J."""
    count = torch.bincount(y).double()
    means = torch.zeros_like(count).index_add_(0, y, scores) / count  # NaN for classes without images
    worst = means.nan_to_num(nan=torch.inf).argmin()
    return scores / len(scores) + torch.where(y == worst, scores / count[worst], 0.0)


def _error_of_sum(values: Tensor, y: Tensor) -> float:
    """The standard error of a sum over images whose numbers by class are fixed; a class of one image adds nothing."""
    count = torch.bincount(y).double()
    means = torch.zeros_like(count).index_add_(0, y, values) / count.clamp_min(1)
    squares = torch.zeros_like(count).index_add_(0, y, (values - means[y]).square())
    return float((count * squares / (count - 1).clamp_min(1)).sum().sqrt())
