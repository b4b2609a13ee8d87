"""Decisions about images: whether they are classified correctly, over one or several passes of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Decision(NamedTuple):
    """What one or several passes say about images.

    Attributes:
        logits: float32 logits, the mean over the passes, (N, classes).
        prediction: the label if the image is correct; else the most frequent incorrect prediction, int64 (N,).
        correct: whether the image counts as correct, bool (N,).
        repeats: number of passes that are correct, int64 (N,).
    """

    logits: Tensor
    prediction: Tensor
    correct: Tensor
    repeats: Tensor


def decide(passes: Sequence[Tensor], y: Tensor, needed: int = 1) -> Decision:
    """Decide whether images are classified correctly. Logits that are not finite are incorrect, in any of the passes.

    Args:
        passes: float32 logits (N, classes) of each pass.
        y: labels, int64 (N,).
        needed: number of correct passes from which on an image counts as correct.

    Example:
        >>> passes = [torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.0, 0.0, 4.0]])]
        >>> decision = decide(passes, torch.tensor([0]), needed=2)
        >>> decision.correct.item(), decision.repeats.item(), decision.prediction.item()
        (False, 1, 2)
    """
    if len(passes) == 1:
        (logits,) = passes
        prediction = logits.argmax(1)
        correct = (prediction == y) & logits.isfinite().all(1)
        return Decision(logits, prediction, correct, correct.long())
    stacked = torch.stack([*passes])
    # In float64, so that the mean of equal logits is these logits.
    logits, predictions = stacked.double().mean(0).to(stacked.dtype), stacked.argmax(2)
    right = (predictions == y) & stacked.isfinite().all(2)
    repeats = right.sum(0)
    correct = (repeats >= needed) & logits.isfinite().all(1)
    votes = torch.zeros_like(logits).scatter_add_(1, predictions.T, torch.ones_like(predictions.T, dtype=logits.dtype))
    votes.scatter_(1, y[:, None], -1.0)
    return Decision(logits, torch.where(correct, y, votes.argmax(1)), correct, repeats)
