"""What guards look at: the outcomes, and a model with a few images on which they may spend passes."""

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
"""Guards that need passes of the model look at so many images, classes in turn."""


class Scale(NamedTuple):
    """The mean and the deviation of a data set's pixels, one of each a channel, in units of [0, 1] images."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Probe:
    """A model and a few images on which guards may spend passes.

    Args:
        engine: with the audit's settings; its model returns logits.
        batch: the images.
        threat: the ball of each of them.
        precision: how gradients are computed.
        scale: the usual mean and deviation of the data, where they are known.
        gradients: whether the model has gradients with respect to its input.
    """

    engine: Engine
    batch: Batch
    threat: Threat
    precision: Precision = EXACT
    scale: Scale | None = None
    gradients: bool = True

    def logits_of(self, x: Tensor) -> Tensor:
        """Float32 logits (N, C) of one pass."""
        (logits,) = self.engine.predict([x])
        return logits.cpu()

    @cached_property
    def logits(self) -> Tensor:
        """Float32 logits of the sample."""
        return self.logits_of(self.batch.x)

    @cached_property
    def labels(self) -> Tensor:
        """The labels of the sample, on the CPU."""
        return self.batch.y.cpu()

    def right(self, logits: Tensor) -> Tensor:
        """Which rows of logits of the sample are finite and predict the label, bool (N,)."""
        return (logits.argmax(1) == self.labels) & logits.isfinite().all(1)

    @cached_property
    def wrong(self) -> Tensor:
        """Which clean images of the sample are misclassified; those whose logits are not finite are among them."""
        return ~self.right(self.logits)

    @cached_property
    def images(self) -> IntArray:
        """(C,) the images of each class."""
        return self.by_class(torch.ones_like(self.wrong))

    def by_class(self, mask: Tensor) -> IntArray:
        """(C,) in how many images of each class the mask (N,) holds."""
        counts: IntArray = torch.bincount(self.labels[mask.cpu()], minlength=self.logits.shape[1]).numpy()
        return counts

    @property
    def margin_gradient(self) -> Tensor:
        """The gradient of the negative logit margin at each image, shaped like the images."""
        model = self.engine.model
        forward, parts = self.precision.forward(model), []
        with evaluating(model), frozen(model):
            for x, y in zip(
                *(torch.split(part, self.engine.batch_size) for part in (self.batch.x, self.batch.y)), strict=True
            ):
                parts.append(value_and_gradient(forward, x, partial(negative_margin, y=y))[1])
        return torch.cat(parts)

    def misclassified(self, attack: Attack, threat: Threat) -> Tensor:
        """Which images of the sample an attack breaks, or were wrong before."""
        return self.wrong | self._found(attack, threat, torch.ones_like(self.wrong))

    def found_by(self, which: Tensor, attack: Attack) -> Tensor:
        """Which of some images (a mask) an attack breaks in the audit's ball; the others cost nothing."""
        return self._found(attack, self.threat, which)

    def _found(self, attack: Attack, threat: Threat, which: Tensor) -> Tensor:
        result = torch.zeros_like(self.wrong)
        places = which.nonzero().squeeze(1)
        if not len(places):
            return result
        columns = {"epsilon": threat.epsilon.cpu()[places]} if isinstance(threat.epsilon, Tensor) else {}
        rows = places.to(self.batch.x.device)
        index, x, y = (tensor[rows] for tensor in self.batch)
        engine = Engine(
            self.engine.model, precision=self.precision, batch_size=self.engine.batch_size, seed=self.engine.seed
        )
        for done in engine.attack(attack, threat, [Job(index, x, y, columns)]):
            result[places[done.row.cpu()]] = done.success.cpu()
        return result


@dataclass(frozen=True)
class Evidence:
    """What guards look at.

    Args:
        outcomes: the finished rows.
        attacks: the attacks by label, where they are known.
        was_training: whether a part of the model was in training mode when it was given.
        untrained: whether its weights are those of a network of the zoo as it is built.
        no_gradient: why the model has no gradient with respect to its input; empty if it has one.
        overwrites: whether the model writes into its input.
        training_attack: the attack of the model's training, where it is known.
        probe: the model and a sample; None where there is no model, or no time.
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
        """(N,) which images of the probe's sample stood against the whole suite."""
        assert self.probe is not None
        robust = self.outcomes.index[self.outcomes.verdicts(ALL) > 0]
        return torch.isin(self.probe.batch.index.cpu(), torch.from_numpy(robust))

    @cached_property
    def black_box(self) -> tuple[str, ...]:
        """The attacks that asked the model for answers and never for a gradient."""
        sums = self.outcomes.frame.groupby("attack", observed=True)[["forwards", "backwards"]].sum()
        silent = set(sums[(sums["forwards"] > 0) & (sums["backwards"] == 0)].index)
        return tuple(label for label in self.attacked if label in silent)

    @cached_property
    def attacked(self) -> tuple[str, ...]:
        """The attacks that had an image to attack."""
        spent = self.outcomes.frame[self.outcomes.frame["forwards"].fillna(0) > 0]
        return tuple(label for label in self.outcomes.attacks if label != CLEAN and label in set(spent["attack"]))

    def name_of(self, label: int) -> str:
        """The name of a class, quoted."""
        return repr(self.outcomes.class_names[label])


class Found(NamedTuple):
    """What a guard found: a sentence, and the number behind it."""

    sentence: str
    value: float = math.nan


Guard = Callable[[Evidence], Found | None]


def on_sample(function: Callable[[Evidence, Probe], Found | None]) -> Guard:
    """A guard that needs a model: it finds nothing where there is none."""

    def run(evidence: Evidence) -> Found | None:
        return None if evidence.probe is None else function(evidence, evidence.probe)

    run.__doc__ = function.__doc__
    return run


def on_gradients(function: Callable[[Evidence, Probe], Found | None]) -> Guard:
    """A guard that needs a model with gradients: it finds nothing where there is none."""

    def run(evidence: Evidence) -> Found | None:
        probe = evidence.probe
        return None if probe is None or not probe.gradients else function(evidence, probe)

    run.__doc__ = function.__doc__
    return run


def percent(share: float) -> str:
    """A share as guards write it."""
    return f"{100 * share:.1f} %"


def quoted(labels: tuple[str, ...]) -> str:
    """Labels as guards write them."""
    return ", ".join(repr(label) for label in labels)
