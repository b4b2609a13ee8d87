"""The base class of corruptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from classwise.core.compute.rng import CounterRNG

SEVERITIES = (1, 2, 3, 4, 5)
Severity = Annotated[int, Field(ge=1, le=5)]


class Corruption(ABC):
    """Base class of corruptions.

    Attributes:
        cifar: parameters of the five severities in CIFAR-10-C.
        imagenet: parameters of the five severities in ImageNet-C.
    """

    cifar: ClassVar[tuple[Any, ...]]
    imagenet: ClassVar[tuple[Any, ...]]

    @abstractmethod
    def apply(self, x: Tensor, level: Any, rng: CounterRNG, index: Tensor) -> Tensor:
        """Corrupt images.

        Args:
            x: images in [0, 1], (N, C, H, W).
            level: parameters of the severity.
            rng: random numbers.
            index: index of each image in the random numbers, int64 (N,).

        Returns:
            Images (N, C, H, W); the caller clips them to [0, 1].
        """
