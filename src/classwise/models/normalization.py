"""Normalisation as the first layer of a model, whose inputs are therefore images in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.models.base import Wrapper

LARGEST_MEAN, LARGEST_STD = 1.0, 2.0
"""Larger constants are those for pixels up to 255: of values in [0, 1] the mean is at most 1, and std at most 0.5."""


class InputScale(NamedTuple):
    """A mean and a standard deviation of pixels in [0, 1], one per channel or one for all."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        texts = (", ".join("1 / 255" if v == 1 / 255 else f"{v:.4g}" for v in values) for values in self)
        return ", ".join(f"{name}=[{text}]" for name, text in zip(self._fields, texts, strict=True))

    @property
    def option(self) -> str:
        """How to state it, for messages: on the command line, in Python."""
        texts = (",".join("1/255" if v == 1 / 255 else f"{v:.4g}" for v in values) for values in self)
        options = " ".join(f"--{name} {text}" for name, text in zip(self._fields, texts, strict=True))
        return f"{options} (in Python: load_model(..., {self}))"

    def standardise(self, x: Tensor) -> Tensor:
        """Subtract the mean of images (N, C, H, W) and divide by the standard deviation."""
        mean, std = (_per_channel(values).to(x) for values in self)
        return (x - mean) / std


def usual_scales(channels: int) -> dict[str, InputScale]:
    """The scales on which networks are commonly trained, other than [0, 1] and those of their data, by name."""
    imagenet = InputScale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    scales = {"scaled to [-1, 1]": InputScale((0.5,), (0.5,)), "scaled to 0..255": InputScale((0.0,), (1 / 255,))}
    return {"standardised with the mean and deviation of ImageNet": imagenet, **scales} if channels == 3 else scales


class Normalized(Wrapper):
    """A model with normalised inputs: ``model((x - mean) / std)``, per channel.

    The buffers ``mean`` and ``std`` have shape (1, C, 1, 1) and are part of the state dict. Other attributes
    (``features``, ``classifier``, ...) are those of the inner model; ``features`` normalises its input.

    Args:
        model: a classifier of normalised images.
        mean: mean of each channel, for images in [0, 1]; one number applies to all channels.
        std: standard deviation of each channel, positive. For a model of pixels up to 255, mean 0 and std 1/255.

    Raises:
        ClasswiseError: if mean and std differ in length, a value is invalid or for pixels up to 255, or the model is a
            `Normalized` already.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import classwise as cw
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
        >>> model = cw.Normalized(network, mean=[0.49, 0.48, 0.45], std=[0.25, 0.24, 0.26])
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    mean: Tensor
    std: Tensor

    @checked
    def __init__(
        self, model: nn.Module, mean: float | Sequence[float] | Tensor, std: float | Sequence[float] | Tensor
    ) -> None:
        if isinstance(model, Normalized):
            raise ClasswiseError("the model is normalised already; pass the inner model, model.model")
        super().__init__(model)
        # Not register_buffer, which rejects names that are attributes of the inner model.
        self._buffers["mean"], self._buffers["std"] = _per_channel(mean), _per_channel(std)
        if self.mean.shape != self.std.shape:
            raise ClasswiseError(
                f"mean has {self.mean.numel()} channels and std {self.std.numel()}; give one value per channel"
            )
        if not self.mean.numel() or not bool((self.std > 0).all() and torch.isfinite(self.mean + self.std).all()):
            raise ClasswiseError(
                f"std = {self.std.flatten().tolist()}: must be positive and finite, one value per channel, as mean"
            )
        if float(self.mean.max()) > LARGEST_MEAN or float(self.std.max()) > LARGEST_STD:
            given = " and ".join(
                f"{what} = [{', '.join(f'{value:.6g}' for value in values.flatten().tolist())}]"
                for what, values in (("mean", self.mean), ("std", self.std))
            )
            raise ClasswiseError(
                f"{given}: a normalisation of pixels up to 255, and images are in [0, 1]; divide both by 255, or, if "
                "the model takes pixels up to 255 without a normalisation, give mean 0 and std 1/255"
            )

    def normalize(self, x: Tensor) -> Tensor:
        """Normalise images (N, C, H, W) in [0, 1].

        Raises:
            ClasswiseError: if the number of channels does not match; a single mean applies to all channels.
        """
        channels = self.mean.shape[1]
        if channels not in (1, x.shape[1]):  # broadcasting would change the number of channels
            raise ClasswiseError(
                f"the normalisation has {channels} channels and the images have {x.shape[1]}; they must be equal"
            )
        return (x - self.mean) / self.std

    def forward(self, x: Tensor) -> Tensor:
        """Output of the inner model for images in [0, 1]."""
        out: Tensor = self.model(self.normalize(x))
        return out

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return (lambda x: value(self.normalize(x))) if name == "features" else value


def _per_channel(values: float | Sequence[float] | Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32).detach().clone().reshape(1, -1, 1, 1)
