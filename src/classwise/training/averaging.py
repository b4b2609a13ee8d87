"""Weight averaging: SWA, exponential moving averages (EMA), and EMAs with an admission threshold (FAWA)."""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor

from classwise.core.settings.config import Count, NonNegative, Number, Share, configurable
from classwise.core.settings.description import Described
from classwise.stats.rational import as_rational, difference
from classwise.training.classes.signals import Signals
from classwise.training.worst_classes import Worst, exact_accuracies, resolve_worst, worst_accuracy

Score = Fraction | float
"""The score of an epoch: a fraction if it is an accuracy."""

Weights = Mapping[str, Tensor]
"""The state dict of a model: parameters and buffers, such as the statistics of batch normalisation."""


@dataclass
class Average:
    """The state of an averager, which is saved in checkpoints.

    Args:
        weights: the current average; empty before the first update.
        facts: further state of the averager.
        event: the decision of the last epoch, for the events of the run; None if there is none.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    event: dict[str, Any] | None = None


class Averager(Described, ABC):
    """Base class of weight averaging. Subclasses are frozen dataclasses."""

    #: The signals that `after_epoch` reads.
    reads: ClassVar[frozenset[str]] = frozenset()

    @property
    def averages_steps(self) -> bool:
        """Whether the trainer calls `after_step` after each step; by default, whether it is overridden."""
        return type(self).after_step is not Averager.after_step

    def after_step(self, state: Average, weights: Weights, progress: float) -> Average:
        """Return the state after a step, modified or new; ``progress`` is the fraction of training completed."""
        return state

    def for_classes(self, classes: int) -> Averager:
        """Return the averager with the settings that depend on the number of classes resolved."""
        return self

    @abstractmethod
    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Return the state after an epoch; ``progress`` is the fraction of training completed before the epoch."""


def blend(average: Weights, new: Weights, decay: float) -> dict[str, Tensor]:
    """Compute decay * average + (1 - decay) * new.

    Other entries (counters, extra state) are copied from ``new``. An empty average is replaced by a copy of ``new``.
    """
    if not average:
        return {name: copied(value) for name, value in new.items()}
    floats = _floats(new)
    pairs = [new[name] for name in floats], [average[name] for name in floats]
    values = dict(zip(floats, torch._foreach_lerp(*pairs, decay), strict=True)) if floats else {}
    return {name: values[name] if name in values else copied(value) for name, value in new.items()}


def update(average: dict[str, Tensor], new: Weights, decay: float) -> None:
    """Set an average to decay * average + (1 - decay) * new in place, without memory for a second average.

    Other entries (counters, extra state) are copied from ``new``. An empty average becomes a copy of ``new``.
    """
    if not average:
        average.update(blend(average, new, decay))
        return
    floats = _floats(new)
    others = [name for name in new if name not in floats and isinstance(new[name], Tensor)]
    if floats:
        torch._foreach_lerp_([average[name] for name in floats], [new[name] for name in floats], 1 - decay)
    if others:
        torch._foreach_copy_([average[name] for name in others], [new[name] for name in others])
    average.update({name: copied(value) for name, value in new.items() if not isinstance(value, Tensor)})


def copied(value: Any) -> Any:
    """A copy of an entry of a state dict: a tensor, or extra state of any type."""
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _floats(weights: Weights) -> list[str]:
    return [name for name, value in weights.items() if isinstance(value, Tensor) and value.is_floating_point()]


@configurable
class NoAverage(Averager):
    """No weight averaging."""

    source = ()
    example = "none"

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Return the state unchanged."""
        return state


class _RunningAverage(Averager):
    """An average of all weights from a fraction of training on, after each epoch or each step."""

    changes = ("average",)

    start_fraction: float
    every: str

    @abstractmethod
    def decay_and_facts(self, facts: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """Return the weight of the average so far, and the facts after the update."""

    @property
    def averages_steps(self) -> bool:
        """Whether ``every`` is ``"step"``."""
        return self.every == "step"

    def after_step(self, state: Average, weights: Weights, progress: float) -> Average:
        """Update the average if ``every`` is ``"step"``."""
        if self.averages_steps and progress >= self.start_fraction:
            decay, state.facts = self.decay_and_facts(state.facts)
            update(state.weights, weights, decay)
        return state

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Update the average if ``every`` is ``"epoch"``."""
        if self.averages_steps or progress < self.start_fraction:
            return state
        decay, facts = self.decay_and_facts(state.facts)
        return Average(blend(state.weights, weights, decay), facts)


@configurable
class EMA(_RunningAverage):
    """Exponential moving average (EMA) of the weights.

    Args:
        decay: the decay rate.
        start_fraction: the fraction of training after which averaging starts, with the weights at that time.
        every: update the average after each ``"epoch"`` or each ``"step"``.
    """

    source = ("rebuffi2021data",)
    example = "ema:decay=0.85"

    decay: Share = 0.85
    start_fraction: Share = 0.25
    every: Literal["epoch", "step"] = "epoch"

    def decay_and_facts(self, facts: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """Return the decay rate."""
        return self.decay, {}


@configurable
class SWA(_RunningAverage):
    """Stochastic weight averaging (SWA; Izmailov et al., UAI 2018): the mean of the weights late in training.

    The statistics of batch normalisation are averaged with the weights. The paper recomputes them instead, in a pass
    over the training images.

    Args:
        start_fraction: the fraction of training after which averaging starts.
        every: update the average after each ``"epoch"`` or each ``"step"``.
    """

    source = ("izmailov2018averaging",)
    example = "swa:start_fraction=0.5"

    start_fraction: Share = 0.5
    every: Literal["epoch", "step"] = "epoch"

    def decay_and_facts(self, facts: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """Return n / (n + 1) after n updates, and their new number."""
        count = facts.get("count", 0)
        return count / (count + 1), {"count": count + 1}


@configurable
class GatedAverage(Averager):
    """Base class of FAWA: an EMA of the epochs whose score reaches a threshold.

    The average starts at the first admitted epoch. Until then, the EMA of all epochs is saved instead. The events
    record that, and long sequences of refused epochs.

    Args:
        decay: the decay rate.
        start_fraction: the fraction of training after which epochs can be admitted; all epochs are scored.
        patience: the number of consecutive refused epochs that is reported in the event.
    """

    changes = ("average",)

    decay: Share = 0.85
    start_fraction: Share = 0.25
    patience: Count = 20

    @abstractmethod
    def score_and_threshold(self, history: list[float], signals: Signals) -> tuple[Score, Score]:
        """Compute the score of the epoch (NaN if no class could be measured) and the required score.

        Args:
            history: the scores of the previous epochs, oldest first.
            signals: the signals of the epoch.
        """

    def after_epoch(self, state: Average, weights: Weights, signals: Signals, progress: float) -> Average:
        """Update the average if the score reaches the threshold."""
        history = state.facts.get("history", [])
        reached, bar = self.score_and_threshold(history, signals)
        facts = {"admitted": 0, "refused": 0} | state.facts | {"history": [*history, float(reached)]}
        if progress < self.start_fraction:
            return Average(state.weights, facts)
        admitted = difference(reached, bar) >= 0
        facts["admitted"] += admitted
        facts["refused"] = 0 if admitted else facts["refused"] + 1
        plain = not facts["admitted"]
        event = {
            "event": "fawa",
            "admitted": admitted,
            "worst": float(reached),
            "threshold": float(bar),
            "plain_average_saved": plain,
        }
        if facts["refused"] and facts["refused"] % self.patience == 0:
            event["refused_in_a_row"] = facts["refused"]
        if admitted or plain:
            first = admitted and facts["admitted"] == 1
            return Average(blend({} if first else state.weights, weights, self.decay), facts, event)
        return Average(state.weights, facts, event)


@configurable
class FAWA(GatedAverage):
    """Fairness-aware weight averaging (FAWA; Wei et al., CVPR 2023, section 4.3): an EMA of the fair epochs.

    An epoch is admitted if the robust accuracy of the worst class on the validation split, of the online model, reaches
    the threshold: a constant (``gate="absolute"``, the paper's), or a fraction of the best epoch so far
    (``gate="relative"``, ours, for short runs that do not reach the constant).

    Args:
        gate: the kind of threshold.
        threshold: the threshold, or the fraction; None for 0.2 of the worst class (the paper's), 0.05 of the worst
            fifth, and a fraction of 0.8.
        worst: the worst class, or the mean of the worst fifth of the classes; ``"auto"``: the fifth of more than 20
            classes.
    """

    source = ("wei2023cfa, section 4.3",)
    example = "fawa:decay=0.85,threshold=0.2"

    gate: Literal["absolute", "relative"] = "absolute"
    threshold: Share | None = None
    worst: Worst = "auto"

    reads = frozenset({"valid.robust"})

    def for_classes(self, classes: int) -> FAWA:
        """Return FAWA with ``worst`` and ``threshold`` resolved for a number of classes."""
        worst = resolve_worst(self.worst, classes)
        default = 0.8 if self.gate == "relative" else {"class": 0.2, "fifth": 0.05}[worst]
        threshold = default if self.threshold is None else self.threshold
        return dataclasses.replace(self, worst=worst, threshold=threshold)

    def score_and_threshold(self, history: list[float], signals: Signals) -> tuple[Score, Score]:
        """Compute the accuracy of the worst class or classes, and the threshold, exactly."""
        robust = signals["valid.robust"]
        gate = self.for_classes(int((~robust.isnan()).sum()))
        assert gate.threshold is not None
        reached, threshold = worst_accuracy(exact_accuracies(robust), gate.worst), as_rational(gate.threshold)
        if gate.gate == "absolute":
            return reached, threshold
        scores = [as_rational(value) for value in (*history, reached) if not math.isnan(value)]
        return reached, threshold * max(scores, default=Fraction(0))


@configurable
class ChartFAWA(GatedAverage):
    """FAWA with a control chart over epochs instead of a fixed threshold (ours).

    All epochs use the same validation images, so the sampling error that they share cancels in comparisons between
    epochs. The score of an image is sigmoid((p_y - max other p) / 0.1) at the last point of the validation attack,
    which has lower variance than 0-1 accuracy. The score W of an epoch is the lowest class mean. The reference is the
    largest median of W over any ``window`` consecutive previous epochs. An epoch is admitted if W is at least the
    reference minus ``slack`` * 1.4826 * MAD, the median absolute deviation of the last ``window`` epochs (1.4826 makes
    it consistent with the standard deviation). Before ``window`` epochs, W must reach the median of the previous ones.

    Args:
        window: number of epochs of a window.
        slack: the allowed distance below the reference, in standard deviations.
        worst: whether W is the lowest class mean or the mean of the lowest fifth, as in `FAWA`.
    """

    source = ("wei2023cfa, section 4.3",)
    example = "fawa-chart:decay=0.85"

    window: Count = 10
    slack: NonNegative = 0.5
    worst: Worst = "auto"

    reads = frozenset({"valid.soft"})

    def for_classes(self, classes: int) -> ChartFAWA:
        """Return the gate with ``worst`` resolved for a number of classes."""
        return dataclasses.replace(self, worst=resolve_worst(self.worst, classes))

    def score_and_threshold(self, history: list[float], signals: Signals) -> tuple[float, float]:
        """Compute the score W of the epoch, and the control limit."""
        reached = worst_accuracy(signals["valid.soft"].tolist(), self.worst)
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
    """FAWA with an intersection-union test: every class must reach the threshold significantly (ours).

    The score of an epoch is the lowest of the classes' one-sided lower Wilson bounds, with any number of classes. The
    test needs about 250 validation images per class to have power.

    Args:
        threshold: the required robust accuracy of every class.
        confidence: the confidence level of each bound.
    """

    source = ("wei2023cfa, section 4.3",)
    example = "fawa-iut:decay=0.85,threshold=0.2"

    threshold: Share = 0.2
    confidence: Annotated[Number, pydantic.Field(gt=0.5, lt=1)] = 0.9

    reads = frozenset({"valid.robust"})

    def score_and_threshold(self, history: list[float], signals: Signals) -> tuple[float, float]:
        """Compute the lowest lower bound, and the threshold."""
        share, count = signals["valid.robust"].double(), signals["valid.count"].double()
        z = statistics.NormalDist().inv_cdf(self.confidence)
        centre = share + z * z / (2 * count)
        spread = z * (share * (1 - share) / count + z * z / (4 * count * count)).sqrt()
        return worst_accuracy(((centre - spread) / (1 + z * z / count)).tolist(), "class"), self.threshold
