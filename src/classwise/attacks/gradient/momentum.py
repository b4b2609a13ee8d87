"""Gradient ascent for transferable adversarial examples: momentum (MI-FGSM) and input diversity (DI2-FGSM).

MI-FGSM: Dong et al., CVPR 2018, algorithm 1. DI2-FGSM: Xie et al., CVPR 2019, eq. 5 to 7.
"""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.gradient.ascent import CrossEntropyAscent, Start
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import NonNegative, Share, StepSize, configurable


@configurable
class MIFGSM(CrossEntropyAscent):
    """Momentum iterative FGSM: g <- decay g + gradient / ‖gradient‖₁, by default from the clean image.

    Args:
        decay: decay factor of the momentum, 0 or more; 0 is the basic iterative method.
    """

    source = ("dong2018boosting",)
    example = "mifgsm:steps=20,decay=0.9"

    step_size: StepSize = "0.1eps"
    random_init: Start = "none"
    decay: NonNegative = 1.0

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start with zero momentum."""
        state = super().start(model, inputs)
        return {**state, "momentum": torch.zeros_like(state["x"])}

    def _direction(self, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        size = gradient.abs().flatten(1).sum(1).clamp_min(torch.finfo(gradient.dtype).tiny)
        momentum = self.decay * state["momentum"] + gradient / size.view(-1, *[1] * (gradient.ndim - 1))
        return momentum, {"momentum": momentum}


@configurable
class DIFGSM(MIFGSM):
    """Diverse inputs iterative FGSM: MI-FGSM with gradients on randomly resized and zero-padded images.

    With probability ``diversity_prob`` a step uses a smaller copy of the image. Its size (in pixels, from
    ``resize_rate`` times the image to one pixel less than it) and position are random for each image and step. Success
    is decided only at steps without a copy and at the last iterate.

    Args:
        decay: decay factor as for MI-FGSM; 0 is DI2-FGSM and 1 is M-DI2-FGSM.
        diversity_prob: probability that a step uses a resized copy, in [0, 1].
        resize_rate: smallest size of the copy, as a fraction of the image's height and width.
    """

    source = ("xie2019improving",)
    example = "difgsm:steps=20,diversity_prob=0.7"

    decay: NonNegative = 0.0
    diversity_prob: Share = 0.5
    resize_rate: Share = 0.9

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Take a step of MI-FGSM on the images or their resized copies."""
        uniform = inputs.uniform((4,), state["iteration"] + 1)  # counter 0 is used by the start
        resized = uniform[:, 0] < self.diversity_prob
        height, width = (
            torch.where(
                resized[:, None, None],
                resampling(side, self.resize_rate, uniform[:, 1], offset),
                _identity(side, offset),
            )
            for side, offset in zip(inputs.x.shape[-2:], (uniform[:, 2], uniform[:, 3]), strict=True)
        )

        def diverse(x: Tensor) -> Tensor:
            return model(torch.einsum("nhi,ncij,nwj->nchw", height, x, width))

        new = super().step(diverse, inputs, state)
        return {**new, "margin": torch.where(resized, torch.inf, new["margin"])}


def resampling(side: int, rate: float, size: Tensor, offset: Tensor) -> Tensor:
    """Matrices (N, side, side) that resize a line of pixels by bilinear interpolation and pad it with zeros.

    Args:
        side: number of pixels of the line.
        rate: smallest length, as a fraction of ``side``.
        size: uniform numbers in [0, 1), (N,), for the length: an integer from ``rate * side`` (rounded down, at least
            1) to ``side - 1``.
        offset: uniform numbers in [0, 1), (N,), for the number of zeros before the line.
    """
    low = min(max(int(side * rate), 1), max(side - 1, 1))
    length = low + (size * max(side - low, 1)).floor()
    first = (offset * (side - length)).floor()
    pixel = torch.arange(side, device=size.device, dtype=size.dtype)
    within = pixel[None] - first[:, None]
    source = ((within + 0.5) * (side / length)[:, None] - 0.5).clamp(0, side - 1)
    weight = (1 - (source[:, :, None] - pixel).abs()).clamp_min(0)
    covered = (within >= 0) & (within < length[:, None])
    return weight * covered[:, :, None]


def _identity(side: int, like: Tensor) -> Tensor:
    return torch.eye(side, dtype=like.dtype, device=like.device)
