"""Margin attacks with a cosine step-size schedule: PMA and MD.

PMA: Xie et al. 2024, "Towards Million-Scale Adversarial Robustness Evaluation With Stronger Individual Attacks".
MD: Ma et al. 2023, "Imbalanced Gradients: A Subtle Cause of Overestimated Adversarial Robustness".
"""

from __future__ import annotations

import math
from typing import Annotated

import pydantic
import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.gradient.ascent import Ascent
from classwise.core.settings import limits
from classwise.core.settings.config import Count, Integer, StepSize, configurable


@configurable
class PMA(Ascent):
    """Probability margin attack: ascent on p_max - p_y with a cosine step-size schedule.

    Step i of n, counted from 0, has the size ``step_size`` cos(pi i / 2n). The default step size is that of the paper,
    2/255 at the radius 8/255.
    """

    source = ("xie2024towards",)
    example = "pma:steps=50,restarts=2"

    steps: Count = 100
    step_size: StepSize = "0.25eps"

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """log(1 + p_max - p_y): same gradient direction as p_max - p_y, without underflow."""
        del inputs
        return losses.probability_margin(logits, y)

    def _step_of(self, inputs: AttackInputs, state: State) -> Tensor | float:
        shrunk = torch.cos(state["iteration"] * (math.pi / (2 * self.steps)))
        return super()._step_of(inputs, state) * _per_image(shrunk, inputs)


@configurable
class MD(Ascent):
    """Margin decomposition attack: two runs that first maximise one term of the margin each, then the margin.

    Step 0 maximises z_y, to change the initial point. In the first half of the steps the first run minimises z_y and
    the second maximises z_max, the largest other logit. In the second half both maximise z_max - z_y. Step i has the
    size ``step_size`` (1 + cos(pi (i - 1) / h)), where h is half of the steps; the schedule restarts at step h + 1.

    Args:
        steps: number of steps per run; at least 2.
        restarts: number of pairs of runs.
    """

    source = ("ma2023imbalanced",)
    example = "md:steps=100"

    steps: Annotated[Integer, pydantic.Field(ge=2, le=limits.COUNT)] = 50
    step_size: StepSize = "1eps"

    @property
    def starts(self) -> int:
        """Two runs for each restart."""
        return 2 * self.restarts

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """The margin z_max - z_y."""
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
