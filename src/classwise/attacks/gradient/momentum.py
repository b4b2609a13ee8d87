"""Gradient ascent that transfers to other models: with momentum, and on resized images.

MI-FGSM: Dong et al., CVPR 2018, algorithm 1. DI2-FGSM: Xie et al., CVPR 2019, eq. 5 to 7.
"""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.gradient.ascent import Ascent, Start
from classwise.core.config import NonNegative, Share, StepSize, configurable
from classwise.core.precision import Forward


@configurable
class MIFGSM(Ascent):
    """FGSM in many steps along a momentum: g <- decay g + gradient / ‖gradient‖₁, from the image itself.

    Args:
        decay: how much of the momentum each step keeps, 0 or more; at 0 it is the basic iterative method.
    """

    source = ("dong2018boosting",)
    example = "mifgsm:steps=20,decay=0.9"

    step_size: StepSize = "0.1eps"
    random_init: Start = "none"
    decay: NonNegative = 1.0

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """Cross-entropy."""
        del inputs
        return losses.cross_entropy(logits, y)

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The image, without momentum."""
        state = super().start(model, inputs)
        return {**state, "momentum": torch.zeros_like(state["x"])}

    def _direction(self, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        size = gradient.abs().flatten(1).sum(1).clamp_min(torch.finfo(gradient.dtype).tiny)
        momentum = self.decay * state["momentum"] + gradient / size.view(-1, *[1] * (gradient.ndim - 1))
        return momentum, {"momentum": momentum}


@configurable
class DIFGSM(MIFGSM):
    """MI-FGSM whose gradients are taken, some of the time, on a smaller copy of the image with black around it.

    The copy's size (whole pixels, from ``resize`` of the image up to one pixel less than it) and place are drawn for
    each image and step. What the model says of a copy is not held against the image: only the steps without one, and
    the last image, count as hits.

    Args:
        decay: as for MI-FGSM; 0 is DI2-FGSM and 1 is M-DI2-FGSM.
        probability: the chance that a step uses a copy.
        resize: the smallest copy, as a share of the image's height and width.
    """

    source = ("xie2019improving",)
    example = "difgsm:steps=20,probability=0.7"

    decay: NonNegative = 0.0
    probability: Share = 0.5
    resize: Share = 0.9

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """A step of MI-FGSM on what is seen of each image."""
        uniform = inputs.uniform((4,), state["iteration"] + 1)  # 0 is the start's
        copied = uniform[:, 0] < self.probability
        height, width = (
            torch.where(copied[:, None, None], resampling(side, self.resize, uniform[:, 1], place), _whole(side, place))
            for side, place in zip(inputs.x.shape[-2:], (uniform[:, 2], uniform[:, 3]), strict=True)
        )

        def see(x: Tensor) -> Tensor:
            return model(torch.einsum("nhi,ncij,nwj->nchw", height, x, width))

        new = super().step(see, inputs, state)
        return {**new, "margin": torch.where(copied, torch.inf, new["margin"])}


def resampling(side: int, share: float, size: Tensor, place: Tensor) -> Tensor:
    """Matrices (N, side, side) that shrink a line of pixels by bilinear interpolation and put zeros around it.

    Args:
        side: the pixels of the line.
        share: the smallest length, as a share of the side.
        size: draws in [0, 1), (N,), for the length: a whole number from ``share * side`` (rounded down, at least 1) to
            ``side - 1``.
        place: draws in [0, 1), (N,), for how many zeros come first.
    """
    low = min(max(int(side * share), 1), max(side - 1, 1))
    length = low + (size * max(side - low, 1)).floor()
    first = (place * (side - length)).floor()
    pixel = torch.arange(side, device=size.device, dtype=size.dtype)
    within = pixel[None] - first[:, None]
    source = ((within + 0.5) * (side / length)[:, None] - 0.5).clamp(0, side - 1)
    weight = (1 - (source[:, :, None] - pixel).abs()).clamp_min(0)
    covered = (within >= 0) & (within < length[:, None])
    return weight * covered[:, :, None]


def _whole(side: int, like: Tensor) -> Tensor:
    return torch.eye(side, dtype=like.dtype, device=like.device)
