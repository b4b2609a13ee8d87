"""The inverse temperature 1/T of hypersphere embedding by epochs (Tian et al., ICLR 2021 submission, appendix G)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize
from torch import Tensor

from classwise.core.config import Count, Positive, Share, configurable
from classwise.training.classes import ClassSettings, Signals
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.schedules.base import Classes, ClassSchedule, State

Floats = npt.NDArray[np.float64]

_LOWEST = 0.01
"""The smallest scale that is looked at."""
_NEAR = 1e-9
"""How near a solution's mean probability must come to its target."""


@configurable
class LIS(ClassSchedule):
    """1/T grows linearly from the first epoch to the last.

    Args:
        first: 1/T of the first epoch.
        last: 1/T of the last epoch, and of those after it.
        epochs: how many epochs the rise takes; the paper's run has 100.
    """

    source = ("tian2021intriguing, appendix G",)
    changes = ("scale",)
    example = "lis:first=1,last=75"

    first: Positive = 1.0
    last: Positive = 75.0
    epochs: Count = 100

    sets_scale = True

    def start(self, classes: Classes) -> State:
        """Nothing to remember but where the numbers live."""
        return {"one": torch.ones((), device=classes.device)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The scale of this epoch."""
        share = min(epoch / max(self.epochs - 1, 1), 1.0)
        return dataclasses.replace(before, scale=state["one"] * (self.first + (self.last - self.first) * share))


@configurable
class CMP(ClassSchedule):
    """1/T such that the mean largest probability of the training images follows a line.

    P(s) = mean over images of max_k softmax(s c)_k, c the network's outputs on the attacked images of the last epoch as
    they were met (before the first epoch: on the clean images, in one pass). Before each epoch P(s) = target is solved
    for s = 1/T by Powell's hybrid method. The target rises linearly from ``first`` to ``last`` in ``epochs`` epochs and
    then stays. s is ``max_scale`` where no smaller s reaches the target, and 1 for a target of at most 1/C.

    The state holds the outputs of an epoch: images times classes numbers.

    Args:
        first: P of the first epoch.
        last: P from the epoch ``epochs`` on.
        epochs: how many epochs the rise takes; the paper's 90 of 100.
        max_scale: the largest 1/T.
    """

    source = ("tian2021intriguing, appendix G",)
    changes = ("scale",)
    example = "cmp:first=0.2,last=1"

    first: Share = 0.2
    last: Share = 1.0
    epochs: Count = 90
    max_scale: Positive = 300.0

    sets_scale = True

    def start(self, classes: Classes) -> State:
        """Room for the outputs on every training image."""
        rows = int(classes.counts.sum())
        return {
            "outputs": torch.zeros(rows, len(classes), device=classes.device),
            "met": torch.zeros((), dtype=torch.int64, device=classes.device),
            "scale": torch.ones((), device=classes.device),
        }

    def before_training(self, state: State, outputs: Callable[[], Tensor]) -> State:
        """Solve for the first epoch, on the untrained network."""
        return {**state, "scale": self._solved(outputs(), 0)}

    def after_batch(self, state: State, step: Step, batch: TrainingBatch) -> State:
        """Store the outputs of the batch, divided by their scale."""
        del batch
        logits = step.clean_logits if step.robust_logits is None else step.robust_logits
        assert logits is not None
        buffer = state["outputs"]
        positions = state["met"] + torch.arange(len(logits), device=buffer.device)
        rows = positions % len(buffer)  # a ring buffer: the latest outputs replace the oldest
        buffer.index_copy_(0, rows, logits.detach().float() / state["scale"])
        return {**state, "met": state["met"] + len(logits)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Solve for the next epoch; one without a step leaves all as it was."""
        del signals
        met = state["outputs"][: int(state["met"])]
        if not len(met):
            return state
        return {**state, "met": torch.zeros_like(state["met"]), "scale": self._solved(met, epoch + 1)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The scale of this epoch."""
        del epoch
        return dataclasses.replace(before, scale=state["scale"])

    def target(self, epoch: int) -> float:
        """P that an epoch (counted from 0) is to have."""
        return self.first + (self.last - self.first) * min(epoch / self.epochs, 1.0)

    def _solved(self, outputs: Tensor, epoch: int) -> Tensor:
        found = inverse_temperature(outputs.double().cpu().numpy(), self.target(epoch), self.max_scale)
        return torch.full((), found, dtype=torch.float32, device=outputs.device)


def inverse_temperature(outputs: Floats, target: float, max_scale: float = 300.0) -> float:
    """The scale s in [0.01, max_scale] at which the mean largest probability of softmax(s outputs) is the target.

    It rises with s, so there is one solution at most; a target outside what these scales reach gets the nearer end, but
    1/C and less, which would leave nothing to learn from, gets s = 1 (at most ``max_scale``).
    Powell's hybrid method (MINPACK's hybrd) works on log s; where it does not arrive, Brent's method takes over.

    Args:
        outputs: the network's outputs, (N, C); cosines on the hypersphere.
        target: the mean largest probability.
        max_scale: the largest scale.
    """
    gaps = outputs - outputs.max(1, keepdims=True)

    def excess(log_scale: float) -> float:
        return float((1 / np.exp(np.exp(log_scale) * gaps).sum(1)).mean()) - target

    def excess_and_slope(x: Floats) -> tuple[Floats, Floats]:
        scaled = np.exp(x) * gaps
        powers = np.exp(scaled)
        slope = -(powers * scaled).sum(1) / powers.sum(1) ** 2
        return np.array([excess(float(x[0]))]), np.array([[slope.mean()]])

    if target <= 1 / outputs.shape[1]:
        return min(1.0, max_scale)
    low, high = float(np.log(min(_LOWEST, max_scale))), float(np.log(max_scale))
    if excess(low) >= 0:
        return float(np.exp(low))
    if excess(high) <= 0:
        return max_scale
    begin = np.array([high / 2])
    found = optimize.root(excess_and_slope, begin, jac=True, method="hybr", options={"xtol": 1e-12})
    solution = float(found.x[0])
    if not (low <= solution <= high and abs(excess(solution)) <= _NEAR):
        solution = float(optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14))
    return float(np.exp(solution))
