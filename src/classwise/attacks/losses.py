"""What an attack maximises, image by image: functions of logits (N, C) and labels (N,), each returning (N,)."""

from __future__ import annotations

import functools
import warnings

import torch
import torch.nn.functional as F  # noqa: N812  # the field's own name for it
from torch import Tensor

_TINY = 1e-12


def runner_up(logits: Tensor, y: Tensor) -> Tensor:
    """The largest logit among the other classes, (N,)."""
    return logits.scatter(1, y[:, None], -torch.inf).amax(1)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """The logit margin z_y - max_{k != y} z_k, (N,): negative where the prediction is wrong."""
    return logits.gather(1, y[:, None]).squeeze(1) - runner_up(logits, y)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y, (N,)."""
    return F.cross_entropy(logits, y, reduction="none")


def negative_margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{k != y} z_k - z_y, (N,): what Carlini and Wagner (S&P 2017) ascend, with no floor."""
    return -margin(logits, y)


def others_against_label(logits: Tensor, y: Tensor) -> Tensor:
    """The logarithm of sum_{k != y} exp(z_k - z_y), (N,).

    The cross-entropy is log(1 + exp(this)), so the two have gradients of one direction; this one does not vanish where
    the softmax is saturated, and for steep logits it tends to the negative margin.
    """
    own = logits.gather(1, y[:, None])
    return (logits - own).scatter(1, y[:, None], -torch.inf).logsumexp(1)


def divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(reference) ‖ softmax(logits)), (N,)."""
    return F.kl_div(logits.log_softmax(1), reference.log_softmax(1), reduction="none", log_target=True).sum(1)


def nth_other(logits: Tensor, y: Tensor, rank: Tensor) -> Tensor:
    """The class of the largest logit (rank 0), the second largest, ... among the other classes, int64 (N,)."""
    order: Tensor = logits.scatter(1, y[:, None], -torch.inf).argsort(dim=1, descending=True, stable=True)
    return order.gather(1, rank[:, None]).squeeze(1)


def towards(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """z_t - z_y, (N,): the margin by which the target leads the label."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The difference of logits ratio -(z_y - max_{k != y} z_k) / (z_(1) - z_(3)), (N,), with z_(1) >= z_(2) >= ...

    Croce and Hein (ICML 2020), eq. 6: scaling or shifting all logits changes nothing. With 2 classes there is no z_(3):
    it is the negative margin, and a notice says so once.
    """
    if logits.shape[1] < 3:
        _notice("the difference of logits ratio needs 3 classes; with 2 it is replaced by the margin")
        return negative_margin(logits, y)
    top = logits.topk(3, dim=1).values
    return negative_margin(logits, y) / (top[:, 0] - top[:, 2] + _TINY)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """-(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2), (N,), with z_(1) >= z_(2) >= ...

    Croce and Hein (ICML 2020), eq. 7. With fewer than 4 classes it is the margin z_t - z_y, and a notice says so once.
    Dividing by z_(1) - z_(3) instead is no substitute: with 3 classes and the third as the target the ratio is exactly
    -1 as long as the prediction is right, so its gradient is zero. The reference implementation has no form for fewer
    than 4 classes: it warns, then fails with an index error.
    """
    lead = towards(logits, y, target)
    if logits.shape[1] < 4:
        _notice("the targeted difference of logits ratio needs 4 classes; with fewer it is replaced by the margin")
        return lead
    top = logits.topk(4, dim=1).values
    return lead / (top[:, 0] - top[:, 2:].mean(1) + _TINY)


def probability_margin(logits: Tensor, y: Tensor) -> Tensor:
    """The logarithm of 1 + p_max - p_y, (N,), where p is the softmax and p_max is that of the best other class.

    It rises with p_max - p_y, so the two have gradients of one direction; this one does not vanish where p_y is 1 in
    float32. With s = 1 - p_y, p_max is s times the best share among the others, so 1 + p_max - p_y = s (1 + share).
    """
    others = logits.scatter(1, y[:, None], -torch.inf)
    mass = others.logsumexp(1)
    wrong = F.logsigmoid(mass - logits.gather(1, y[:, None]).squeeze(1))
    return wrong + torch.log1p((others.amax(1) - mass).exp())


@functools.cache
def _notice(text: str) -> None:
    """Warn, once in a process for each text."""
    warnings.warn(text, UserWarning, stacklevel=3)
