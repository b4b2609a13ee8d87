"""Base class of the networks in the zoo, and of wrappers around a network."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.compute.memory_format import share_format
from classwise.core.errors import ClasswiseError

LARGE_SIDE = 128
"""Height and width from which images are large: the default of a network may be another one (`for_large_images`)."""
DEFAULT_INITIALISATION = "PyTorch's default"


class Classifier(nn.Module, ABC):
    """Base class of the networks of the zoo, with logits ``classifier(features(x))``.

    Images may have any size: the last feature map is pooled to a fixed size. State-dict keys are those of the public
    code of each architecture, so public checkpoints can be loaded; `renamed` and `unused` list the exceptions.
    """

    last_layer: ClassVar[str] = "linear"
    """Name of the attribute with the last linear layer."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Regular expressions for parts of the keys of public checkpoints, and their replacements."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Key prefixes of layers that public code stores but does not use in its forward pass."""
    for_large_images: ClassVar[Mapping[str, Any]] = {}
    """Options that are the default for images of at least `LARGE_SIDE` pixels; empty for a network for small images."""
    initialisation: str = DEFAULT_INITIALISATION
    """How the weights are initialised."""

    @classmethod
    def options_of(cls, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """Options other than the defaults that follow from the shapes of weights with the network's keys."""
        return {}

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The inputs (N, F) of the last layer for images (N, C, H, W)."""

    @property
    def classifier(self) -> nn.Linear:
        """The last linear layer: weight (num_classes, F)."""
        layer = getattr(self, self.last_layer)
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, num_classes) of images (N, C, H, W)."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


class Wrapper(nn.Module):
    """A module around a network, ``model``, in its mode; unknown attributes are looked up in the network."""

    model: nn.Module

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = bool(getattr(model, "training", False))
        share_format(self, model)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self.__dict__.get("_modules", {}).get("model")
            if inner is None or name.startswith("__"):
                raise
            return getattr(inner, name)


def bare(model: nn.Module) -> nn.Module:
    """The network inside all its wrappers."""
    while isinstance(model, Wrapper):
        model = model.model
    return model


def last_linear(model: nn.Module) -> nn.Linear:
    """The last linear layer: ``model.classifier`` if it is linear, else the last one among the modules.

    Raises:
        ClasswiseError: if there is none, or others among the modules have as many outputs.
    """
    layer = getattr(model, "classifier", None)
    if isinstance(layer, nn.Linear):
        return layer
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    same = sum(other.out_features == module.out_features for module in linear[-1:] for other in linear)
    if same != 1:
        found = f"{same} linear layers of {linear[-1].out_features} outputs" if same else "no linear layer"
        raise ClasswiseError(f"{type(bare(model)).__name__} has {found}; name its last layer 'classifier'")
    return linear[-1]


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer of a model; the CPU if it has none."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def channels(count: int, width: float) -> int:
    """The number of channels at a width factor: ``count * width``, rounded, at least 1.

    Raises:
        ClasswiseError: if the factor is not positive.
    """
    if not width > 0:
        raise ClasswiseError(f"width = {width}: must be a positive factor of the number of channels, such as 0.25")
    return max(1, round(count * width))


def pooled(x: Tensor) -> Tensor:
    """The mean over the feature map: (N, F, H, W) to (N, F)."""
    return x.mean(dim=(2, 3))


def to_grid(x: Tensor, side: int) -> Tensor:
    """The feature map (N, F, H, W) average-pooled to (N, F, side, side); unchanged if it has that size.

    On a GPU it is a product with a matrix in float32, since torch's pooling has no deterministic gradient there.
    """
    if x.shape[-2:] == (side, side):
        return x
    if not x.is_cuda:
        return F.adaptive_avg_pool2d(x, side)
    with torch.autocast(x.device.type, enabled=False):
        averages = x.flatten(2).float() @ _averages(x.shape[-2], x.shape[-1], side, x.device)
    return averages.to(x.dtype).view(*x.shape[:2], side, side)


@functools.cache
def _averages(height: int, width: int, side: int, device: torch.device) -> Tensor:
    """The matrix (height * width, side * side) of adaptive average pooling, whose windows may overlap."""
    with torch.inference_mode(mode=False), torch.no_grad():
        rows, columns = (_windows(size, side, device) for size in (height, width))
        return torch.kron(rows, columns).T.contiguous()


def _windows(size: int, side: int, device: torch.device) -> Tensor:
    """The windows along one axis, (side, size): each row is an average."""
    start = torch.arange(0, side * size, size, device=device)[:, None]  # in units of 1 / side
    place = torch.arange(0, side * size, side, device=device)
    inside = (start < place + side) & (place < start + size)
    return inside / inside.sum(1, keepdim=True)


def start_for_relu(network: Classifier, mode: Literal["fan_in", "fan_out"] = "fan_in") -> None:
    """Initialise every convolution for ReLU (He et al., 2015), with zero biases; linear layers are not changed.

    With PyTorch's default initialisation, activations vanish in deep networks without shortcuts.
    """
    network.initialisation = f"convolutions: He et al., {mode.replace('_', '-')}; linear: {DEFAULT_INITIALISATION}"
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
