"""What an attack maximises, image by image: functions of logits (N, C) and labels (N,), each returning (N,)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # the field's own name for it
from torch import Tensor


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
