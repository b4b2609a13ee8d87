"""Extraction of the logits from a model's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError, unknown
from classwise.models.base import Classifier, Wrapper
from classwise.models.functions import as_module

Outputs = Literal["auto", "logits", "probabilities"]
"""What a model returns. ``auto``: logits; an audit refuses a model whose outputs are probabilities."""

SUM_TOLERANCE = 1e-3
"""Largest distance from 1 of the sum of a row of probabilities."""


def pick_logits(output: object) -> Tensor:
    """The logits (N, C) in a model's output: a tensor, the first of a tuple or list, ``.logits`` or ``["logits"]``.

    Raises:
        ClasswiseError: if there are no logits, or they are not a matrix of floating-point numbers.
    """
    logits = output
    if isinstance(logits, Mapping):
        logits = logits.get("logits")
    elif not isinstance(logits, Tensor) and hasattr(logits, "logits"):
        logits = logits.logits
    elif isinstance(logits, tuple | list) and logits:
        logits = logits[0]
    if not isinstance(logits, Tensor):
        raise ClasswiseError(
            f"the model returns a {type(output).__name__} without logits; return a tensor (N, C), "
            "a tuple whose first element is one, or an object or dict with 'logits'"
        )
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ClasswiseError(
            f"the model returns {str(logits.dtype).removeprefix('torch.')} of shape {tuple(logits.shape)}; "
            "logits must be floating-point numbers of shape (N, C), one row per image"
        )
    return logits


def are_probabilities(outputs: Tensor) -> bool:
    """Whether each row of outputs (N, C), C of at least 2, is nonnegative and sums to 1."""
    sums = outputs.double().sum(1)
    return outputs.shape[1] > 1 and bool((outputs >= 0).all() and ((sums - 1).abs() < SUM_TOLERANCE).all())


def as_logits(model: nn.Module | Callable[[Tensor], object]) -> nn.Module:
    """The model as a module that returns logits: networks of the zoo and wrappers unchanged, others wrapped.

    Args:
        model: a module, or a function from images to an output with logits.

    Raises:
        ClasswiseError: if it is neither.
    """
    return model if isinstance(model, Classifier | Wrapper) else LogitsModel(as_module(model))


class LogitsModel(Wrapper):
    """A wrapper that returns only the logits of a model.

    Args:
        model: a module whose output `pick_logits` accepts.
        outputs: what the model returns. ``"probabilities"``: the logits are their logarithms, of at least the smallest
            positive number.

    Raises:
        ClasswiseError: for other ``outputs``.
    """

    def __init__(self, model: nn.Module, outputs: Outputs = "auto") -> None:
        if outputs not in get_args(Outputs):
            raise unknown("outputs of a model:", str(outputs), get_args(Outputs))
        super().__init__(model)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C) of images (N, channels, H, W)."""
        _calls_user_code = True
        logits = pick_logits(self.model(x))
        if len(logits) != len(x) or logits.is_meta:
            shape = f"{'meta tensor' if logits.is_meta else 'tensor'} of shape {tuple(logits.shape)}"
            raise ClasswiseError(
                f"the model returns a {shape} for {len(x)} images; logits must be (N, C), one row per image"
            )
        if self.outputs != "probabilities":
            return logits
        return logits.float().clamp_min(torch.finfo(torch.float32).tiny).log()
