"""Decisions about images: whether they are classified correctly, over one or several passes of a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from classwise.models.logits import are_valid, predicts


def runner_up(logits: Tensor, y: Tensor) -> Tensor:
    """The largest logit among the other classes, (N,)."""
    return logits.scatter(1, y[:, None], -torch.inf).amax(1)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """The logit margin z_y - max_{k != y} z_k, (N,): negative where the prediction is wrong."""
    return logits.gather(1, y[:, None]).squeeze(1) - runner_up(logits, y)


class Decision(NamedTuple):
    """Verdicts of one or several passes on images.

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


def decide(passes: Iterable[Tensor], y: Tensor, needed: int = 1) -> Decision:
    """Decide whether images are classified correctly. Rows of logits without a prediction (`are_valid`) are incorrect.

    Args:
        passes: float32 logits (N, classes) of each pass, at least one.
        y: labels, int64 (N,).
        needed: number of correct passes from which on an image counts as correct.

    Example:
        >>> passes = [torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.0, 0.0, 4.0]])]
        >>> decision = decide(passes, torch.tensor([0]), needed=2)
        >>> decision.correct.item(), decision.repeats.item(), decision.prediction.item()
        (False, 1, 2)
    """
    remaining = iter(passes)
    first, second = next(remaining), next(remaining, None)
    if second is None:
        correct = predicts(first, y)
        return Decision(first, first.argmax(1), correct, correct.long())
    count, total = 0, torch.zeros_like(first, dtype=torch.float64)  # in float64 the mean of equal logits is exact
    repeats, votes = torch.zeros_like(y), torch.zeros_like(first, dtype=torch.int64)
    for logits in itertools.chain((first, second), remaining):
        repeats = repeats + predicts(logits, y)
        votes += functional.one_hot(logits.argmax(1), logits.shape[1])
        count, total = count + 1, total + logits
    mean = (total / count).to(first.dtype)
    correct = (repeats >= needed) & are_valid(mean)
    incorrect = votes.scatter_(1, y[:, None], -1).argmax(1)
    return Decision(mean, torch.where(correct, y, incorrect), correct, repeats)
