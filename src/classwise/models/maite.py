"""Models in the protocol of MAITE as modules, without importing the package."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classwise.core.compute.tensors import as_tensor
from classwise.core.errors import ClasswiseError
from classwise.core.settings.user_code import call_user_code
from classwise.data.maite import class_names_of, has_metadata
from classwise.models.functions import FunctionModel


def is_model(value: object) -> bool:
    """Whether an object is a model in the protocol of MAITE, and no `torch.nn.Module`."""
    return has_metadata(value) and callable(value) and not isinstance(value, nn.Module)


class MaiteModel(FunctionModel):
    """A model in the protocol of MAITE as a module without gradients.

    The model is called with a list of float32 arrays (C, H, W) in [0, 1], and returns logits or probabilities (C,) of
    each image. Its modules are moved to the device, and are in evaluation mode during an audit. The buffer ``digest``
    identifies its id, its code, and the arrays among its attributes.

    Args:
        model: the model.

    Raises:
        ClasswiseError: if it returns no scores of each image.
    """

    def __init__(self, model: Callable[[Any], Any]) -> None:
        super().__init__(model)
        attributes: dict[str, Any] = getattr(model, "__dict__", {})
        metadata: Any = getattr(model, "metadata")  # noqa: B009  # of the protocol, not of the type
        self.name = str(metadata["id"])
        self.class_names = class_names_of(metadata, f"model {self.name}")
        module = next((name for name, value in attributes.items() if isinstance(value, nn.Module)), "")
        hint = f" (load_model(model, unwrap={module!r}, data=images) evaluates its module)" if module else ""
        self.no_gradient = f"a MAITE model takes and returns arrays{hint}"
        digest = hashlib.sha256(self.digest.numpy().tobytes() + self.name.encode())
        for name, value in sorted(attributes.items()):
            if isinstance(value, np.ndarray) and value.dtype.kind != "O":
                digest.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
        self.digest = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)

    def forward(self, x: Tensor) -> Tensor:
        """The scores (N, C) of images (N, channels, H, W)."""
        scores = as_tensor([*self._outputs(list(x.detach().cpu().numpy()))], f"model {self.name}").float()
        if scores.ndim != 2 or len(scores) != len(x):
            raise ClasswiseError(
                f"model {self.name} returns scores of shape {tuple(scores.shape)} for {len(x)} images; expected (C,) "
                "for each image"
            )
        return scores.to(x.device)

    def _outputs(self, images: list[np.ndarray[Any, Any]]) -> Any:
        found: Any = call_user_code(self._function, images)  # type: ignore[arg-type]  # not a batch of images, but their list
        return found
