"""Rates of passes that were measured on a device, from which durations on this device are predicted elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn

from classwise.core.compute.operations import operations_of
from classwise.core.errors import unknown

Kind = Literal["training", "decision", "forward", "gradient"]
"""A pass of a training step, in forward passes (`PassCounts.equivalents`); a float32 pass that decides whether an image
is correctly classified; and passes of an attack without and with the gradient of the image."""


class Clock(Protocol):
    """Returns the seconds of a pass of some images."""

    def __call__(self, kind: Kind, images: int, work: Callable[[], object]) -> float:
        """Return the seconds of ``work``, a pass of this kind, which may be called."""


@dataclass(frozen=True)
class Rates:
    """Images per second of each kind of pass of one network on one device.

    Args:
        device: the device.
        source: where the measurements are.
        operations: floating-point operations of a forward pass of an image through the measured network.
        images: images per second by kind of pass.
    """

    device: str
    source: str
    operations: float
    images: Mapping[Kind, float]

    def __str__(self) -> str:
        return f"{self.device} (rates of {self.source})"

    def clock(self, model: nn.Module, image: Tensor) -> Clock:
        """Return a clock that calls nothing: the seconds follow from the rates and the operations of the model.

        A larger network takes longer in proportion to its operations. A smaller one is not taken to be faster.

        Args:
            model: the model in evaluation mode, which is called once.
            image: an image, (1, C, H, W).

        Example:
            >>> import torch
            >>> linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 10))
            >>> seconds = RATES["h100"].clock(linear, torch.zeros(1, 3, 4, 4))
            >>> round(seconds("training", 23 * 128, lambda: None), 4)  # a step of AT at batch 128
            0.0247
        """
        return self.clock_of(operations_of(model, image))

    def clock_of(self, operations: float) -> Clock:
        """Return the clock of a model with this many floating-point operations in a forward pass of an image."""
        scale = max(1.0, operations / self.operations)

        def seconds(kind: Kind, images: int, work: Callable[[], object]) -> float:
            del work
            return images * scale / self.images[kind]

        return seconds


RATES: Mapping[str, Rates] = {
    "h100": Rates(
        device="NVIDIA H100 80GB HBM3",
        source="the documentation, On a GPU",
        operations=3_269_875_990_528 / (23 * 128),  # a step of AT is 23 forward passes: 10 of 2, and one of 3
        images={
            "training": 23 * 128 / 0.02471,  # a step of AT as a CUDA graph at batch 128, bfloat16
            "decision": 20_840,  # float32, batch 1,024
            "forward": 109_519,  # steps of Square, batch 1,024
            # APGD-CE and APGD-T on 10,000 images: 4,753 images survive 100 steps, 4,441 of them 900 more
            "gradient": (4_753 * 100 + 4_441 * 900) / 72.4,
        },
    ),
}
"""Measured rates by name; PreActResNet-18 on images of 32x32 pixels."""


def named_rates(name: str) -> Rates:
    """Return the rates of a name in `RATES`.

    Raises:
        ClasswiseError: for an unknown name.
    """
    if name not in RATES:
        raise unknown("rates", name, RATES)
    return RATES[name]
