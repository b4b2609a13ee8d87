"""Averages of weights along the run: none, plain, exponential, and exponential with a gate on the worst class."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor

from classwise.core.config import Count, NonNegative, Number, Share, configurable
from classwise.core.description import Described
from classwise.core.errors import ClasswiseError
from classwise.training.classes import Signals

Weights = Mapping[str, Tensor]
"""A model's state dict: parameters, and buffers such as the statistics of batch normalisation."""


@dataclass
class Average:
    """The averager's state: plain data, so that a checkpoint can hold it.

    Args:
        weights: the average so far; empty before it begins.
        facts: the averager's own numbers.
        event: the decision of the last epoch, for the events of the run; None if there was none.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    event: dict[str, Any] | None = None


class Averager(Described, ABC):
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


@configurable
class NoAverage(Averager):
    """No average."""

    source = ()
    example = "none"

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Nothing."""
        del weights, signals, progress
        return state


@configurable
class EMA(Averager):
    """The exponential moving average of the weights, from a share of training on.

    Args:
        decay: the weight of the past.
        start_fraction: the share of training from which it runs; the first weights then are its start.
        every: fold in after each ``"epoch"`` or each ``"step"``.
    """

    source = ("rebuffi2021data",)
    changes = ("average",)
    example = "ema:decay=0.85"

    decay: Share = 0.85
    start_fraction: Share = 0.25
    every: Literal["epoch", "step"] = "epoch"

    def after_step(self, state: Average, weights: Weights, progress: float) -> Average:
        """Fold the step's weights in, if it runs by steps."""
        if self.every != "step" or progress < self.start_fraction:
            return state
        return Average(blend(state.weights, weights, self.decay))

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Fold the epoch's weights in, if it runs by epochs."""
        del signals
        if self.every != "epoch" or progress < self.start_fraction:
            return state
        return Average(blend(state.weights, weights, self.decay))


@configurable
class SWA(Averager):
    """Stochastic weight averaging (Izmailov et al., UAI 2018): the plain mean of late weights.

    The statistics of batch normalisation are averaged with the weights; the paper measures them anew instead, with a
    pass over the training images.

    Args:
        start_fraction: the share of training from which it runs.
        every: fold in after each ``"epoch"`` or each ``"step"``.
    """

    source = ("izmailov2018averaging",)
    changes = ("average",)
    example = "swa:start_fraction=0.5"

    start_fraction: Share = 0.5
    every: Literal["epoch", "step"] = "epoch"

    def after_step(self, state: Average, weights: Weights, progress: float) -> Average:
        """Fold the step's weights in, if it runs by steps."""
        return self._folded(state, weights) if self.every == "step" and progress >= self.start_fraction else state

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Fold the epoch's weights in, if it runs by epochs."""
        del signals
        return self._folded(state, weights) if self.every == "epoch" and progress >= self.start_fraction else state

    def _folded(self, state: Average, weights: Weights) -> Average:
        count = state.facts.get("count", 0)
        return Average(blend(state.weights, weights, count / (count + 1)), {"count": count + 1})


@configurable
class FAWA(Averager):
    """Fairness-aware weight averaging (Wei et al., CVPR 2023, section 4.3): an average that unfair epochs do not enter.

    An epoch is admitted if the worst class of the online model, by robust accuracy on the validation split, reaches
    the threshold. The first admitted epoch is the start of the average. Until one is admitted the plain average is
    saved in its place, and the event records it.

    Args:
        decay: the weight of the past.
        start_fraction: the share of training from which epochs are considered.
        threshold: what the worst class must reach (the paper: 0.2); None to go by ``relative_threshold`` alone.
        relative_threshold: what the worst class must reach as a share of the best worst class so far; None to go by
            ``threshold`` alone.
    """

    source = ("wei2023cfa, section 4.3",)
    changes = ("average",)
    example = "fawa:decay=0.85,threshold=0.2"

    decay: Share = 0.85
    start_fraction: Share = 0.25
    threshold: Share | None = 0.2
    relative_threshold: Share | None = None

    reads = frozenset({"valid.robust"})

    def __post_init__(self) -> None:
        if self.threshold is None and self.relative_threshold is None:
            raise ClasswiseError("averaging 'fawa' needs a threshold or a relative one, such as threshold = 0.2")

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Fold the epoch's weights in if its worst class passes the gate."""
        robust = signals["valid.robust"]
        worst = float(robust[~robust.isnan()].min())
        best = max(worst, state.facts.get("best_worst", 0.0))
        facts = {"best_worst": best, "admitted": state.facts.get("admitted", 0)}
        if progress < self.start_fraction:
            return Average(state.weights, facts)
        bar = max(self.threshold or 0.0, (self.relative_threshold or 0.0) * best)
        admitted = worst >= bar
        facts["admitted"] += admitted
        plain = not facts["admitted"]  # no epoch admitted so far: save the plain average meanwhile
        event = {"event": "fawa", "admitted": admitted, "worst": worst, "threshold": bar, "plain_average_kept": plain}
        first = admitted and facts["admitted"] == 1
        if admitted or plain:
            return Average(blend({} if first else state.weights, weights, self.decay), facts, event)
        return Average(state.weights, facts, event)


@configurable
class GatedAverage(Averager):
    """An exponential average that an epoch enters only if a gate admits it; FAWA with any gate.

    The first admitted epoch is the start of the average. Until one is admitted the plain average is saved in its
    place. The events record that, and long stretches of refused epochs.

    Args:
        decay: the weight of the past.
        start_fraction: the share of training from which epochs may enter; the gate watches all of them.
        patience: the number of refused epochs in a row after which the event reports them.
    """

    decay: Share = 0.85
    start_fraction: Share = 0.25
    patience: Count = 20

    @abstractmethod
    def judge(self, history: list[float], signals: Signals) -> tuple[float, float]:
        """What the epoch reached (NaN if no class could be measured) and what it had to reach.

        Args:
            history: what each epoch before reached, the oldest first.
            signals: what the epoch measured.
        """

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Fold the epoch's weights in if the gate lets them."""
        history = state.facts.get("history", [])
        reached, bar = self.judge(history, signals)
        facts = {"admitted": 0, "refused": 0} | state.facts | {"history": [*history, reached]}
        if progress < self.start_fraction:
            return Average(state.weights, facts)
        admitted = reached >= bar
        facts["admitted"] += admitted
        facts["refused"] = 0 if admitted else facts["refused"] + 1
        plain = not facts["admitted"]
        event = {"event": "fawa", "admitted": admitted, "worst": reached, "threshold": bar, "plain_average_kept": plain}
        if facts["refused"] and facts["refused"] % self.patience == 0:
            event["refused_in_a_row"] = facts["refused"]
        if admitted or plain:
            first = admitted and facts["admitted"] == 1
            return Average(blend({} if first else state.weights, weights, self.decay), facts, event)
        return Average(state.weights, facts, event)


@configurable
class ChartFAWA(GatedAverage):
    """FAWA that compares epochs with each other, as a control chart does (ours).

    The validation images are the same each epoch, so what is special about them is common to all epochs and cancels in
    a comparison, where it does not against a fixed threshold. Each image scores sigmoid((p_y - max other p) / 0.1) at
    the last point of the validation attack, which is finer than right or wrong; an epoch reaches W, the lowest class
    mean. The reference is the largest median of W over any ``window`` consecutive epochs before; the epoch is admitted
    if W is at least the reference less ``slack`` * 1.4826 * MAD of the last ``window`` epochs (their median absolute
    deviation from their median; 1.4826 makes it a standard deviation). Before there are so many, it must reach the
    median of the epochs so far.

    Args:
        window: epochs of a window.
        slack: how many standard deviations below the reference still pass.
    """

    source = ("wei2023cfa, section 4.3",)
    changes = ("average",)
    example = "fawa-chart:decay=0.85"

    window: Count = 10
    slack: NonNegative = 0.5

    reads = frozenset({"valid.soft"})

    def judge(self, history: list[float], signals: Signals) -> tuple[float, float]:
        """The lowest class mean of the soft scores, and the chart's limit."""
        reached = _lowest(signals["valid.soft"])
        known = [value for value in history if value == value]  # not NaN
        if len(known) < self.window:
            return reached, statistics.median(known) if known else 0.0
        windows = (known[first : first + self.window] for first in range(len(known) - self.window + 1))
        reference = max(statistics.median(window) for window in windows)
        recent = known[-self.window :]
        middle = statistics.median(recent)
        deviation = 1.4826 * statistics.median(abs(value - middle) for value in recent)
        return reached, reference - self.slack * deviation


@configurable
class IUTFAWA(GatedAverage):
    """FAWA that admits an epoch only if every class is shown to reach the threshold (an intersection-union test).

    The epoch reaches the lowest of the classes' one-sided lower Wilson bounds. It takes many validation images to show
    anything: about 250 a class.

    Args:
        threshold: what every class must be shown to reach.
        confidence: the confidence of each bound.
    """

    source = ("wei2023cfa, section 4.3",)
    changes = ("average",)
    example = "fawa-iut:decay=0.85,threshold=0.2"

    threshold: Share = 0.2
    confidence: Annotated[Number, pydantic.Field(gt=0.5, lt=1)] = 0.9

    reads = frozenset({"valid.robust"})

    def judge(self, history: list[float], signals: Signals) -> tuple[float, float]:
        """The lowest lower bound, and the threshold."""
        del history
        share, count = signals["valid.robust"].double(), signals["valid.count"].double()
        z = statistics.NormalDist().inv_cdf(self.confidence)
        centre = share + z * z / (2 * count)
        spread = z * (share * (1 - share) / count + z * z / (4 * count * count)).sqrt()
        return _lowest((centre - spread) / (1 + z * z / count)), self.threshold


def _lowest(values: Tensor) -> float:
    """The lowest of the classes that could be measured; NaN if none could."""
    known = values[~values.isnan()]
    return float(known.min()) if len(known) else math.nan
