"""Extraction of the logits from a model's output."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.models.base import Wrapper


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


class LogitsModel(Wrapper):
    """A wrapper that returns only the logits of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C) of images (N, channels, H, W)."""
        _calls_user_code = True
        logits = pick_logits(self.model(x))
        if len(logits) != len(x) or logits.is_meta:
            shape = f"{'meta tensor' if logits.is_meta else 'tensor'} of shape {tuple(logits.shape)}"
            raise ClasswiseError(
                f"the model returns a {shape} for {len(x)} images; logits must be (N, C), one row per image"
            )
        return logits
