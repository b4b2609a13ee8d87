"""What an attack maximises, image by image: functions of logits (N, C) and labels (N,), each returning (N,)."""

from __future__ import annotations

import functools
import warnings

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


def logits_ratio(logits: Tensor, y: Tensor) -> Tensor:
    """The difference of logits ratio -(z_y - max_{k != y} z_k) / (z_1 - z_3), z sorted, largest first, (N,).

    Croce and Hein, ICML 2020, eq. 6: it does not change with the scale of the logits. With 2 classes there is no z_3;
    the negative margin takes its place, and a notice says so once.
    """
    if logits.shape[1] < 3:
        _notice("the difference of logits ratio needs 3 classes; with 2 it is replaced by the margin")
        return negative_margin(logits, y)
    largest = logits.topk(3, dim=1).values
    return negative_margin(logits, y) / (largest[:, 0] - largest[:, 2] + _TINY)


def targeted_logits_ratio(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The targeted difference of logits ratio -(z_y - z_t) / (z_1 - (z_3 + z_4) / 2), z sorted, largest first, (N,).

    Croce and Hein, ICML 2020, eq. 7. With 3 classes the denominator is z_1 - z_3 and with 2 it is 1; a notice says so
    once.

    Args:
        logits: (N, classes).
        y: labels, int64 (N,).
        target: the class to reach, int64 (N,).
    """
    classes = logits.shape[1]
    gain = logits.gather(1, target[:, None]).squeeze(1) - logits.gather(1, y[:, None]).squeeze(1)
    if classes < 3:
        _notice("the targeted difference of logits ratio needs 4 classes; with 2 it is replaced by the margin")
        return gain
    largest = logits.topk(min(classes, 4), dim=1).values
    if classes == 3:
        _notice("the targeted difference of logits ratio needs 4 classes; with 3 it is divided by z_1 - z_3")
    low = (largest[:, 2] + largest[:, -1]) / 2
    return gain / (largest[:, 0] - low + _TINY)


_TINY = 1e-12


@functools.cache
def _notice(text: str) -> None:
    """Warn, once in a process for each text."""
    warnings.warn(text, UserWarning, stacklevel=3)
