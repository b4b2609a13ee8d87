"""The interface of objectives: the points of the inner maximisation, then the terms of the loss per image."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pydantic
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.core.config import configurable, describe, make
from classwise.core.description import Described, Passes
from classwise.core.precision import Forward
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.training.classes import ClassSettings, Term
from classwise.training.criteria import CRITERIA
from classwise.training.criteria.base import Criterion
from classwise.training.criteria.softmax import Softmax


def _identity(rows: Tensor) -> Tensor:
    return rows


@dataclass(frozen=True)
class TrainingBatch:
    """A training batch: augmented images, and the threat of each.

    Args:
        x: images in [0, 1], (N, C, H, W).
        y: labels, int64 (N,).
        index: the random-number index of each row, int64 (N,): that of its image in the training split, and for one
            that was sampled with replacement its position in the epoch too.
        threat: the norm and the radius of each image.
        step_size: the inner attack's step for each image, or None for the attack's own.
        target: the class that the inner attack aims at, int64 (N,), -1 for an untargeted row; None for all untargeted.
        progress: the share of training that is done, in [0, 1].
        rows: the rows of the whole batch that these are, if several processes share it.
        gather: from a value for each of these rows to the values for all rows of the batch, (all, ...), for objectives
            that need the whole batch. Reductions and schedules get the terms of the whole batch.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    threat: Threat
    step_size: Tensor | None = None
    target: Tensor | None = None
    progress: float = 0.0
    rows: slice = field(default_factory=lambda: slice(None))
    gather: Callable[[Tensor], Tensor] = _identity

    def attack_inputs(self, rng: CounterRNG, reference: Tensor | None = None) -> AttackInputs:
        """The batch as an attack's rows."""
        return AttackInputs(
            self.x,
            self.y,
            self.index,
            self.threat,
            rng,
            target=self.target,
            step_size=self.step_size,
            reference=reference,
        )


@dataclass(frozen=True)
class Step:
    """What a step computed, before reduction.

    Args:
        terms: parts of the loss by name, each (N,). ``"clean"`` and ``"robust"`` are weighed by the class settings
            ``clean_weight`` and ``robust_weight``; other names count as they are.
        clean_logits: logits on the clean images, (N, classes), if the step computed them.
        robust_logits: logits on the attacked images, (N, classes), if the step computed them.
    """

    terms: dict[str, Tensor]
    clean_logits: Tensor | None = None
    robust_logits: Tensor | None = None


def _criterion(value: object) -> object:
    return make(CRITERIA, value) if isinstance(value, str | dict) else value


@configurable
class Objective(Described, ABC):
    """A loss of a model on a batch. Subclasses are frozen dataclasses (`classwise.core.config.settings`).

    Args:
        criterion: how logits are scored against labels; ``{"name": "he"}`` for hypersphere embedding. Use its `scaled`
            model for every pass, and call it for the loss against the label.
    """

    criterion: Annotated[Criterion, pydantic.BeforeValidator(_criterion)] = Softmax()

    #: The passes that its points take beside the steps of the inner attack; ``cost`` is that of the loss at them.
    crafting: ClassVar[Passes] = Passes()
    #: Whether it has an inner attack.
    attacks: ClassVar[bool] = True
    #: Whether it has a regulariser, which the class setting ``beta`` weighs; the field ``beta`` is its constant.
    regularised: ClassVar[bool] = False
    #: The terms of its steps that class weights multiply.
    weighed: ClassVar[frozenset[Term]] = frozenset({"clean", "robust"})

    def described(self) -> dict[str, Any]:
        """The fields as a spec has them; the plain criterion is left out, as in recipes from before criteria."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        if fields["criterion"] == Softmax():
            del fields["criterion"]
        else:
            fields["criterion"] = describe(CRITERIA, self.criterion)
        return fields

    def inner(self, attack: Attack) -> Attack:
        """The attack that solves this objective's inner maximisation, given the recipe's."""
        return attack

    @abstractmethod
    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """The inner maximisation(s): adversarial images by name. The loop has frozen the model."""

    @abstractmethod
    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """The terms of the loss at those points."""


def with_fields(attack: Attack, asker: str, **fields: str) -> Attack:
    """The attack with fields of its own replaced.

    Raises:
        ClasswiseError: if the attack does not have them; the line names the objective that asks.
    """
    from classwise.core.errors import ClasswiseError

    missing = fields.keys() - {each.name for each in dataclasses.fields(attack)}  # type: ignore[arg-type]
    if missing:
        raise ClasswiseError(
            f"objective {asker!r} sets {', '.join(sorted(missing))} of the inner attack, "
            f"which {type(attack).__name__} does not have; use pgd"
        )
    return dataclasses.replace(attack, **fields)  # type: ignore[type-var]  # every attack is a dataclass
