"""The inputs of the guards: the outcomes of an audit, and a model with a sample of images."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Job, value_and_gradient
from classwise.attacks.losses import negative_margin
from classwise.auditing.outcomes import ALL, CLEAN, Outcomes
from classwise.core.precision import EXACT, Precision
from classwise.core.threat import Threat
from classwise.data.images import Batch
from classwise.models.modes import evaluating, frozen
from classwise.stats.counts import IntArray

SAMPLE = 128
"""Number of images in the sample of guards that run the model, balanced over classes."""


class InputScale(NamedTuple):
    """The mean and standard deviation of a data set's pixels in [0, 1], one per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Probe:
    """A model and a sample of images on which guards run it.

    Args:
        engine: an engine with the settings of the audit; its model returns logits.
        batch: the sample.
        threat: the threat for the sample.
        precision: the numerical settings for gradients.
        scale: the usual normalisation of the data set, if known.
        gradients: whether the model has gradients with respect to its input.
    """

    engine: Engine
    batch: Batch
    threat: Threat
    precision: Precision = EXACT
    scale: InputScale | None = None
    gradients: bool = True

    def logits_of(self, x: Tensor) -> Tensor:
        """Compute float32 logits (N, C), on the CPU."""
        (logits,) = self.engine.predict([x])
        return logits.cpu()

    @cached_property
    def logits(self) -> Tensor:
        """Float32 logits (N, C) of the sample, on the CPU."""
        return self.logits_of(self.batch.x)

    @cached_property
    def labels(self) -> Tensor:
        """The labels of the sample, on the CPU."""
        return self.batch.y.cpu()

    def correct(self, logits: Tensor) -> Tensor:
        """Whether each row of logits is finite and predicts the label, bool (N,)."""
        return (logits.argmax(1) == self.labels) & logits.isfinite().all(1)

    @cached_property
    def wrong(self) -> Tensor:
        """Whether each clean image of the sample is misclassified or has logits that are not finite, bool (N,)."""
        return ~self.correct(self.logits)

    @cached_property
    def images(self) -> IntArray:
        """Number of images of each class in the sample, (C,)."""
        return self.by_class(torch.ones_like(self.wrong))

    def by_class(self, mask: Tensor) -> IntArray:
        """Count the images of each class, (C,), for which the mask (N,) is true."""
        counts: IntArray = torch.bincount(self.labels[mask.cpu()], minlength=self.logits.shape[1]).numpy()
        return counts

    @property
    def margin_gradient(self) -> Tensor:
        """Gradient of the negative logit margin with respect to each image, shaped like the images."""
        model = self.engine.model
        forward, parts = self.precision.forward(model), []
        with evaluating(model), frozen(model):
            for x, y in zip(
                *(torch.split(part, self.engine.batch_size) for part in (self.batch.x, self.batch.y)), strict=True
            ):
                parts.append(value_and_gradient(forward, x, partial(negative_margin, y=y))[1])
        return torch.cat(parts)

    def misclassified(self, attack: Attack, threat: Threat) -> Tensor:
        """Whether each image of the sample is misclassified, clean or under the attack, bool (N,)."""
        return self.wrong | self._attack(attack, threat, torch.ones_like(self.wrong))

    def succeeds_on(self, mask: Tensor, attack: Attack) -> Tensor:
        """Run an attack in the audit's ball on the images of a mask; whether it succeeded on each, bool (N,)."""
        return self._attack(attack, self.threat, mask)

    def _attack(self, attack: Attack, threat: Threat, mask: Tensor) -> Tensor:
        success = torch.zeros_like(self.wrong)
        attacked = mask.nonzero().squeeze(1)
        if not len(attacked):
            return success
        columns = {"epsilon": threat.epsilon.cpu()[attacked]} if isinstance(threat.epsilon, Tensor) else {}
        rows = attacked.to(self.batch.x.device)
        index, x, y = (tensor[rows] for tensor in self.batch)
        engine = Engine(
            self.engine.model, precision=self.precision, batch_size=self.engine.batch_size, seed=self.engine.seed
        )
        for done in engine.attack(attack, threat, [Job(index, x, y, columns)]):
            success[attacked[done.row.cpu()]] = done.success.cpu()
        return success


@dataclass(frozen=True)
class Evidence:
    """The input of every guard.

    Args:
        outcomes: the outcomes of the audit.
        attacks: the attacks by label, if known.
        was_training: whether a module of the model was in training mode when it was passed to the audit.
        untrained: whether the weights are the initial weights of a network of the zoo.
        no_gradient: why the model has no gradient with respect to its input; empty if it has one.
        overwrites: whether the model writes into its input.
        training_attack: the attack that the model was trained with, if known.
        probe: the model and a sample; None without a model, or if the time limit is reached.
    """

    outcomes: Outcomes
    attacks: Mapping[str, Attack] = dataclasses.field(default_factory=dict)
    was_training: bool = False
    untrained: bool = False
    no_gradient: str = ""
    overwrites: bool = False
    training_attack: Attack | None = None
    probe: Probe | None = None

    @cached_property
    def survivors(self) -> Tensor:
        """Whether each image of the sample is robust to the whole suite, bool (N,).

        With ``settle`` also the images on which the suite did not run to its end: nothing succeeded on them so far.
        """
        assert self.probe is not None
        verdicts = self.outcomes.verdicts(ALL)
        robust = self.outcomes.index[verdicts > 0 if self.outcomes.meta.settle is None else verdicts != 0]
        return torch.isin(self.probe.batch.index.cpu(), torch.from_numpy(robust))

    @cached_property
    def black_box(self) -> tuple[str, ...]:
        """The attacks that ran and used no backward pass."""
        sums = self.outcomes.frame.groupby("attack", observed=True)[["forwards", "backwards"]].sum()
        gradient_free = set(sums[(sums["forwards"] > 0) & (sums["backwards"] == 0)].index)
        return tuple(label for label in self.attacked if label in gradient_free)

    @cached_property
    def attacked(self) -> tuple[str, ...]:
        """The attacks that ran on at least one image."""
        rows = self.outcomes.frame[self.outcomes.frame["forwards"].fillna(0) > 0]
        return tuple(label for label in self.outcomes.attacks if label != CLEAN and label in set(rows["attack"]))

    def name_of(self, label: int) -> str:
        """The quoted name of a class."""
        return repr(self.outcomes.class_names[label])


class GuardWarning(NamedTuple):
    """The result of a guard: a sentence, and the number behind it."""

    sentence: str
    value: float = math.nan


Guard = Callable[[Evidence], GuardWarning | None]


def needs_model(function: Callable[[Evidence, Probe], GuardWarning | None]) -> Guard:
    """Make a guard of a function that needs a model; without one the guard returns None."""

    def run(evidence: Evidence) -> GuardWarning | None:
        return None if evidence.probe is None else function(evidence, evidence.probe)

    run.__doc__ = function.__doc__
    return run


def needs_gradients(function: Callable[[Evidence, Probe], GuardWarning | None]) -> Guard:
    """Make a guard of a function that needs a model with gradients; without them the guard returns None."""

    def run(evidence: Evidence) -> GuardWarning | None:
        probe = evidence.probe
        return None if probe is None or not probe.gradients else function(evidence, probe)

    run.__doc__ = function.__doc__
    return run


def percent(share: float) -> str:
    """Format a fraction in percent."""
    return f"{100 * share:.1f} %"


def quoted(labels: tuple[str, ...]) -> str:
    """Format labels as a quoted, comma-separated list."""
    return ", ".join(repr(label) for label in labels)
