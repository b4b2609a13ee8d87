"""Margin attacks with a schedule: steps that shrink along a cosine, and a margin taken apart at first.

PMA: Xie et al. 2024, "Towards Million-Scale Adversarial Robustness Evaluation With Stronger Individual Attacks".
MD: Ma et al. 2023, "Imbalanced Gradients: A Subtle Cause of Overestimated Adversarial Robustness".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.gradient.ascent import Ascent
from classwise.core.config import Count, StepSize, configurable


@configurable
class PMA(Ascent):
    """The probability margin attack: ascent on p_max - p_y, its steps shrinking along a quarter of a cosine.

    Step i of n (from 0) has the size ``step_size`` cos(pi i / 2n). The default is
    the paper's 2/255 at the radius 8/255.
    """

    source = ("xie2024towards",)
    example = "pma:steps=50,restarts=2"

    steps: Count = 100
    step_size: StepSize = "0.25eps"

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """log(1 + p_max - p_y), which has the gradient's direction of p_max - p_y and does not underflow."""
        del inputs
        return losses.probability_margin(logits, y)

    def _step_of(self, inputs: AttackInputs, state: State) -> Tensor | float:
        shrunk = torch.cos(state["iteration"] * (math.pi / (2 * self.steps)))
        return super()._step_of(inputs, state) * _per_image(shrunk, inputs)


@configurable
class MD(Ascent):
    """Margin decomposition: two runs that at first follow one half of the margin each, then the whole.

    Step 0 raises z_y, which takes the start elsewhere. Until half of the steps the first run lowers z_y and the second
    raises z_max, the best other logit; from there both raise z_max - z_y. Step i has the size ``step_size``
    (1 + cos(pi (i - 1) / h)), where h is half of the steps, and begins anew at step h + 1.

    Args:
        steps: of one run; at least 2.
        restarts: how many pairs of runs.
    """

    source = ("ma2023imbalanced",)
    example = "md:steps=100"

    steps: Count = 50
    step_size: StepSize = "1eps"

    @property
    def starts(self) -> int:
        """Two runs for each restart."""
        return 2 * self.restarts

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """The whole: z_max - z_y."""
        del inputs
        return losses.negative_margin(logits, y)

    def _loss_at(self, logits: Tensor, y: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        own = logits.gather(1, y[:, None]).squeeze(1)
        other = losses.runner_up(logits, y)
        restart = torch.zeros_like(y) if inputs.restart is None else inputs.restart
        part = torch.where(restart % 2 == 0, -own, other)
        iteration = state["iteration"]
        early = torch.where(iteration == 0, own, part)
        return torch.where(iteration < self._half, early, other - own)

    def _step_of(self, inputs: AttackInputs, state: State) -> Tensor | float:
        iteration = state["iteration"]
        phase = torch.where(iteration > self._half, iteration - self._half, iteration) - 1
        factor = 1 + torch.cos(phase * (math.pi / (self.steps - self._half)))
        return super()._step_of(inputs, state) * _per_image(factor, inputs)

    @property
    def _half(self) -> int:
        return self.steps // 2


def _per_image(value: Tensor, inputs: AttackInputs) -> Tensor:
    """(N,) shaped to broadcast over images."""
    return value.to(inputs.x.dtype).view(-1, *[1] * (inputs.x.ndim - 1))
