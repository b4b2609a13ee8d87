"""What every network of the zoo offers (features, a last linear layer), and layers put around a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.core.errors import ClasswiseError


class Classifier(nn.Module, ABC):
    """A network for small images whose logits are ``classifier(features(x))``.

    Images may have any size: the last feature map is pooled to a fixed one. Parameters bear the names that the public
    code of each architecture gave them, so that checkpoints of others fit; `renamed` and `unused` hold the exceptions.
    """

    last_layer: ClassVar[str] = "linear"
    """The attribute that holds the last linear layer."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Regular expressions for parts of other people's keys, and what stands for each here."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the keys of layers that public code stores and never runs."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """What the last layer reads: (N, C, H, W) images to (N, F) features."""

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
    """A layer around a network, ``model``: whatever else the network has can be asked of the wrapper."""

    model: nn.Module

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

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


def channels(count: int, width: float) -> int:
    """The number of channels at a width factor: ``count * width``, rounded, at least 1.

    Raises:
        ClasswiseError: if the factor is not positive.
    """
    if not width > 0:
        raise ClasswiseError(f"width = {width} should be a positive factor of the number of channels, such as 0.25")
    return max(1, round(count * width))


def pooled(x: Tensor) -> Tensor:
    """The mean over the feature map: (N, F, H, W) to (N, F)."""
    return x.mean(dim=(2, 3))


def to_grid(x: Tensor, side: int) -> Tensor:
    """A feature map pooled to ``side`` squared: (N, F, H, W) to (N, F, side, side). One of that size stays as it is."""
    return x if x.shape[-2:] == (side, side) else F.adaptive_avg_pool2d(x, side)


def start_for_relu(network: nn.Module) -> None:
    """Draw the weights of every convolution so that signals keep their size through ReLUs (He et al., 2015).

    torch's own start lets them fade in deep networks without shortcuts, until a fresh one is blind in evaluation mode.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
