"""Class weights from the similarity of classes, of the schedule DAFA and the objective TRIX."""

from __future__ import annotations

import torch
from torch import Tensor


def class_weights(confidence: Tensor, strength: float) -> Tensor:
    """Compute the class weights of DAFA's algorithm 1, before clamping.

    All weights are initially 1. Each pair of classes with P_ii < P_jj transfers ``strength`` P_ij P_jj from the easier
    class j to the harder class i.

    Args:
        confidence: P, the mean softmax on the attacked images of each class, (C, C), rows: true classes. The row of a
            class without images is NaN; its pairs transfer nothing.
        strength: the paper's lambda.

    Returns:
        The weights, (C,), with sum C.
    """
    own = confidence.diagonal()
    moved = torch.where(own[:, None] < own[None, :], confidence * own[None, :], 0.0)  # comparisons with NaN are false
    moved = moved * strength
    return 1 + moved.sum(1) - moved.sum(0)
