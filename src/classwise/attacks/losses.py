"""Losses that attacks maximise: functions of logits (N, C) and labels (N,) that return one value per image, (N,)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # the field's own name for it
from torch import Tensor

from classwise.attacks.engine.decisions import margin, runner_up
from classwise.core.errors import warn_once

__all__ = [
    "cross_entropy",
    "divergence",
    "dlr",
    "margin",
    "negative_margin",
    "nth_other",
    "others_against_label",
    "probability_margin",
    "runner_up",
    "smoothed_cross_entropy",
    "targeted_dlr",
    "towards",
]

_TINY = 1e-12


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y, (N,)."""
    return F.cross_entropy(logits, y, reduction="none")


def smoothed_cross_entropy(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
    """The cross-entropy to targets of 1 - a + a/C for the label and a/C for the others, a = ``smoothing``, (N,)."""
    return F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)


def negative_margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{k != y} z_k - z_y, (N,): the margin loss of Carlini and Wagner (S&P 2017), not clamped at zero."""
    return -margin(logits, y)


def others_against_label(logits: Tensor, y: Tensor) -> Tensor:
    """The logarithm of sum_{k != y} exp(z_k - z_y), (N,).

    The cross-entropy is log(1 + exp(v)) of this value v, so their gradients have the same direction. The gradient of v
    does not vanish where the softmax is saturated. For large logits v tends to the negative margin.
    """
    own = logits.gather(1, y[:, None])
    return (logits - own).scatter(1, y[:, None], -torch.inf).logsumexp(1)


def divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(reference) ‖ softmax(logits)), (N,)."""
    return F.kl_div(logits.log_softmax(1), reference.log_softmax(1), reduction="none", log_target=True).sum(1)


def nth_other(logits: Tensor, y: Tensor, rank: Tensor) -> Tensor:
    """The class with the ``rank``-th largest logit among the other classes, int64 (N,); rank 0 is the largest."""
    order: Tensor = logits.scatter(1, y[:, None], -torch.inf).argsort(dim=1, descending=True, stable=True)
    return order.gather(1, rank[:, None]).squeeze(1)


def towards(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """z_t - z_y, (N,): the logit of the target minus that of the label."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The difference of logits ratio -(z_y - max_{k != y} z_k) / (z_(1) - z_(3)), (N,), with z_(1) >= z_(2) >= ...

    Croce and Hein (ICML 2020), eq. 6. It is invariant to shifting and scaling the logits. With 2 classes there is no
    z_(3); the negative margin is used instead, with one warning per process.
    """
    if logits.shape[1] < 3:
        warn_once("the difference of logits ratio needs 3 classes; with 2 it is replaced by the margin")
        return negative_margin(logits, y)
    top = logits.topk(3, dim=1).values
    return negative_margin(logits, y) / (top[:, 0] - top[:, 2] + _TINY)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The targeted difference of logits ratio, (N,).

    -(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2), with z_(1) >= z_(2) >= ... (Croce and Hein, ICML 2020, eq. 7). With
    fewer than 4 classes the margin z_t - z_y is used instead, with one warning per process. Dividing by z_(1) - z_(3)
    is no substitute: with 3 classes and the third as the target the ratio is exactly -1 while the prediction is
    correct, so its gradient is zero. The reference implementation does not support fewer than 4 classes: it warns, then
    raises an index error.
    """
    difference = towards(logits, y, target)
    if logits.shape[1] < 4:
        warn_once("the targeted difference of logits ratio needs 4 classes; with fewer it is replaced by the margin")
        return difference
    top = logits.topk(4, dim=1).values
    return difference / (top[:, 0] - top[:, 2:].mean(1) + _TINY)


def probability_margin(logits: Tensor, y: Tensor) -> Tensor:
    """log(1 + p_max - p_y), (N,), with the softmax p and p_max = max_{k != y} p_k.

    It increases with p_max - p_y, so their gradients have the same direction, but its gradient does not vanish where
    p_y is 1 in float32. With s = 1 - p_y and the share q = p_max / s, the argument 1 + p_max - p_y is s (1 + q).
    """
    others = logits.scatter(1, y[:, None], -torch.inf)
    mass = others.logsumexp(1)
    wrong = F.logsigmoid(mass - logits.gather(1, y[:, None]).squeeze(1))
    return wrong + torch.log1p((others.amax(1) - mass).exp())
