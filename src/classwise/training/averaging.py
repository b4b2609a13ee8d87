"""Averages of weights along the run: none, exponential, and exponential with a gate on the worst class (FAWA)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from classwise.errors import UserError
from classwise.settings import Share, settings
from classwise.training.classes import Signals

Weights = Mapping[str, Tensor]
"""A model's state dict: parameters, and buffers such as the statistics of batch normalisation."""


@dataclass
class Average:
    """The averager's state: plain data, so that a checkpoint can hold it.

    Args:
        weights: the average so far; empty before it begins.
        facts: the averager's own numbers.
        news: what the last epoch did, for the run's log; None if there is nothing to say.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    news: dict[str, Any] | None = None


class Averager(ABC):
    """Folds a run's weights into an average. Subclasses are frozen dataclasses."""

    #: The signals that it needs at the end of an epoch.
    reads: ClassVar[frozenset[str]] = frozenset()

    def after_step(self, state: Average, weights: Weights, progress: float) -> Average:
        """The state after a step; ``progress`` is the share of training done."""
        del weights, progress
        return state

    @abstractmethod
    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """The state after an epoch; ``progress`` is the share of training done when that epoch began."""


def blend(average: Weights, new: Weights, decay: float) -> dict[str, Tensor]:
    """``decay`` average + (1 - ``decay``) new; integers (counters) are taken over. An empty average becomes the new."""
    if not average:
        return {name: value.detach().clone() for name, value in new.items()}
    return {
        name: torch.lerp(value, average[name], decay) if value.is_floating_point() else value.clone()
        for name, value in new.items()
    }


@settings
class NoAverage(Averager):
    """No average."""

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Nothing."""
        del weights, signals, progress
        return state


@settings
class EMA(Averager):
    """The exponential moving average of the weights, from a share of training on.

    Args:
        decay: the weight of the past.
        begin: the share of training from which it runs; the first weights then are its start.
        every: fold in after each ``"epoch"`` or each ``"step"``.
    """

    decay: Share = 0.85
    begin: Share = 0.25
    every: Literal["epoch", "step"] = "epoch"

    def after_step(self, state: Average, weights: Weights, progress: float) -> Average:
        """Fold the step's weights in, if it runs by steps."""
        if self.every != "step" or progress < self.begin:
            return state
        return Average(blend(state.weights, weights, self.decay))

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Fold the epoch's weights in, if it runs by epochs."""
        del signals
        if self.every != "epoch" or progress < self.begin:
            return state
        return Average(blend(state.weights, weights, self.decay))


@settings
class FAWA(Averager):
    """Fairness-aware weight averaging (Wei et al., CVPR 2023, section 4.3): an average that unfair epochs do not enter.

    An epoch is admitted if the worst class of the online model, by robust accuracy on the validation split, reaches
    the threshold. The first admitted epoch is the start of the average. Until one is admitted the plain average is
    kept in its place, and said so.

    Args:
        decay: the weight of the past.
        begin: the share of training from which epochs are looked at.
        threshold: what the worst class must reach (the paper: 0.2); None to go by ``relative`` alone.
        relative: what the worst class must reach as a share of the best worst class so far; None to go by
            ``threshold`` alone.
    """

    decay: Share = 0.85
    begin: Share = 0.25
    threshold: Share | None = 0.2
    relative: Share | None = None

    reads = frozenset({"valid.robust"})

    def __post_init__(self) -> None:
        if self.threshold is None and self.relative is None:
            raise UserError("averaging 'fawa' needs a threshold or a relative one, such as threshold = 0.2")

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Fold the epoch's weights in if its worst class passes the gate."""
        robust = signals["valid.robust"]
        worst = float(robust[~robust.isnan()].min())
        best = max(worst, state.facts.get("best_worst", 0.0))
        facts = {"best_worst": best, "admitted": state.facts.get("admitted", 0)}
        if progress < self.begin:
            return Average(state.weights, facts)
        bar = max(self.threshold or 0.0, (self.relative or 0.0) * best)
        admitted = worst >= bar
        facts["admitted"] += admitted
        plain = not facts["admitted"]  # nothing has ever passed: keep the plain average meanwhile
        news = {"event": "fawa", "admitted": admitted, "worst": worst, "threshold": bar, "plain_average_kept": plain}
        first = admitted and facts["admitted"] == 1
        if admitted or plain:
            return Average(blend({} if first else state.weights, weights, self.decay), facts, news)
        return Average(state.weights, facts, news)
