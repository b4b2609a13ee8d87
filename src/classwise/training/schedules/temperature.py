"""Schedules of the inverse temperature 1/T (Tian et al., ICLR 2021 submission, appendix G)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classwise.core.settings.config import Count, Positive, Share, configurable
from classwise.training.classes.signals import ClassSettings, Signals
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.schedules.base import Classes, ClassSchedule, State

Floats = npt.NDArray[np.float64]

_LOWEST = 0.01
"""The smallest scale of the search."""
_TOLERANCE = 1e-9
"""Tolerance on the mean probability of a solution."""


def _interpolated(first: float, last: float, epoch: int, epochs: int) -> float:
    """Value of an epoch n, counted from 0: first + n / n_FI (last - first), and ``last`` from n_FI = ``epochs`` on."""
    return first + (last - first) * min(epoch / epochs, 1.0)


@configurable
class LIS(ClassSchedule):
    """Increase 1/T linearly: in epoch n, counted from 0, to the share n / ``epochs`` of the way.

    Args:
        first: 1/T of the first epoch.
        last: 1/T at the end of ``epochs``; a training of as many epochs ends just below it, as in the paper.
        epochs: number of epochs of the increase; 100 in the paper.
    """

    source = ("tian2021intriguing, appendix G",)
    changes = ("scale",)
    example = "lis:first=1,last=75"

    first: Positive = 1.0
    last: Positive = 75.0
    epochs: Count = 100

    sets_scale = True

    def start(self, classes: Classes) -> State:
        """Return a constant on the device of the classes."""
        return {"one": torch.ones((), device=classes.device)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the scale of the epoch."""
        value = _interpolated(self.first, self.last, epoch, self.epochs)
        return dataclasses.replace(before, scale=state["one"] * value)


@configurable
class CMP(ClassSchedule):
    """Set 1/T so that the mean maximum probability of the training images increases linearly.

    P(s) = mean over images of max_k softmax(s c)_k, where c are the outputs on the attacked training images of the last
    epoch (before the first epoch: on the clean images, in one pass). Before each epoch, P(s) = target is solved for s =
    1/T by Powell's hybrid method. The target increases linearly from ``first`` to ``last`` in ``epochs`` epochs and is
    constant afterwards. s is ``max_scale`` if no smaller s reaches the target, and 1 for a target of at most 1/C.

    The state contains the outputs of an epoch, (N, C).

    Args:
        first: the target of the first epoch.
        last: the target from epoch ``epochs`` on.
        epochs: number of epochs of the increase; 90 of 100 in the paper.
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
        """Return a buffer for the outputs on every training image."""
        rows = int(classes.counts.sum())
        return {
            "outputs": torch.zeros(rows, len(classes), device=classes.device),
            "seen": torch.zeros((), dtype=torch.int64, device=classes.device),
            "scale": torch.ones((), device=classes.device),
        }

    def before_training(self, state: State, outputs: Callable[[], Tensor]) -> State:
        """Solve for the scale of the first epoch, with the untrained network."""
        return {**state, "scale": self._solved(outputs(), 0)}

    def after_batch(self, state: State, step: Step, batch: TrainingBatch) -> State:
        """Store the outputs of the batch, divided by their scale."""
        logits = step.logits
        buffer = state["outputs"]
        positions = state["seen"] + torch.arange(len(logits), device=buffer.device)
        rows = positions % len(buffer)  # a ring buffer: the latest outputs replace the oldest
        buffer.index_copy_(0, rows, logits.detach().float() / state["scale"])
        return {**state, "seen": state["seen"] + len(logits)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Solve for the scale of the next epoch; an epoch without steps has no effect."""
        latest = state["outputs"][: int(state["seen"])]
        if not len(latest):
            return state
        return {**state, "seen": torch.zeros_like(state["seen"]), "scale": self._solved(latest, epoch + 1)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the scale of the epoch."""
        return dataclasses.replace(before, scale=state["scale"])

    def target(self, epoch: int) -> float:
        """Return the target P of an epoch (from 0)."""
        return _interpolated(self.first, self.last, epoch, self.epochs)

    def _solved(self, outputs: Tensor, epoch: int) -> Tensor:
        scale = inverse_temperature(outputs.double().cpu().numpy(), self.target(epoch), self.max_scale)
        return torch.full((), scale, dtype=torch.float32, device=outputs.device)


def inverse_temperature(outputs: Floats, target: float, max_scale: float = 300.0) -> float:
    """Solve for the scale s at which the mean maximum probability of softmax(s outputs) equals the target.

    The mean maximum probability increases with s, so there is at most one solution in [0.01, max_scale]. For a target
    out of range, the nearer end is returned; for a target of at most 1/C, s = 1 (at most ``max_scale``). The solver is
    Powell's hybrid method (MINPACK's hybrd) on log s, and Brent's method if that does not converge.

    Args:
        outputs: the network's outputs, (N, C); cosines for hypersphere embedding.
        target: the mean maximum probability.
        max_scale: the largest scale.

    Returns:
        The scale s.
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
    from scipy import optimize  # takes a tenth of a second, which most trainings do not need

    initial = np.array([high / 2])
    root = optimize.root(excess_and_slope, initial, jac=True, method="hybr", options={"xtol": 1e-12})
    solution = float(root.x[0])
    if not (low <= solution <= high and abs(excess(solution)) <= _TOLERANCE):
        solution = float(optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14))
    return float(np.exp(solution))
