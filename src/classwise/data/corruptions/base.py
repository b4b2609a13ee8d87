"""The base class of corruptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from classwise.core.rng import CounterRNG


class Corruption(ABC):
    """One way to spoil images.

    Attributes:
        cifar: what the five severities are in CIFAR-10-C.
        imagenet: what they are in ImageNet-C.
    """

    cifar: ClassVar[tuple[Any, ...]]
    imagenet: ClassVar[tuple[Any, ...]]

    @abstractmethod
    def apply(self, x: Tensor, level: Any, rng: CounterRNG, index: Tensor) -> Tensor:
        """Spoil images (N, C, H, W) in [0, 1], numbered (N,); what leaves [0, 1] is cut off by the caller."""
