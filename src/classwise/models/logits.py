"""Logits out of whatever a user's model returns."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.models.base import Wrapper


def pick_logits(output: object) -> Tensor:
    """The logits (N, C) in a model's output: a tensor, the first of a tuple or list, ``.logits`` or ``["logits"]``.

    Raises:
        ClasswiseError: if there are none, or they are not a matrix of floating-point numbers.
    """
    found = output
    if isinstance(found, Mapping):
        found = found.get("logits")
    elif not isinstance(found, Tensor) and hasattr(found, "logits"):
        found = found.logits
    elif isinstance(found, tuple | list) and found:
        found = found[0]
    if not isinstance(found, Tensor):
        raise ClasswiseError(
            f"the model returns a {type(output).__name__} in which there are no logits; return a tensor (N, C), "
            "a tuple that begins with it, or an object or dict with 'logits'"
        )
    if found.ndim != 2 or not found.is_floating_point():
        raise ClasswiseError(
            f"the model returns {str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}; "
            "logits are floats of shape (N, C), one row an image"
        )
    return found


class LogitsModel(Wrapper):
    """A model that returns its logits and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C) of images (N, channels, H, W)."""
        _calls_user_code = True
        logits = pick_logits(self.model(x))
        if len(logits) != len(x) or logits.is_meta:
            shape = f"{'meta tensor' if logits.is_meta else 'tensor'} of shape {tuple(logits.shape)}"
            raise ClasswiseError(
                f"the model returns a {shape} for {len(x)} images; logits are (N, C), one row an image"
            )
        return logits
