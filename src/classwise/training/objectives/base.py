"""The interface of objectives: the inner maximisation, and the terms of the loss per image."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pydantic
import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.core.compute.precision import Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable, describe, make, parse_spec
from classwise.core.settings.description import Described, PassCounts
from classwise.threat.ball import Norm, Threat
from classwise.training.classes.signals import ClassSettings, Term
from classwise.training.criteria import CRITERIA
from classwise.training.criteria.base import Criterion
from classwise.training.criteria.softmax import Softmax


def _identity(rows: Tensor) -> Tensor:
    return rows


@dataclass(frozen=True)
class TrainingBatch:
    """A training batch: augmented images, labels, and the threat of each image.

    Args:
        x: images in [0, 1], (N, C, H, W).
        y: labels, int64 (N,).
        index: the random-number index of each row, int64 (N,): the index of its image in the training split, combined
            with its position in the epoch if it was sampled with replacement.
        threat: the norm and the radius of each image.
        step_size: the step size of the inner attack per image, (N,), or None for the attack's own.
        target: the target class of the inner attack per image, int64 (N,), -1 for untargeted; None: all untargeted.
        progress: the fraction of training completed, in [0, 1].
        rows: the rows of the full batch that this process has.
        gather: maps values of these rows, (N, ...), to those of all rows of the full batch, for objectives that need
            them. Reductions and schedules always receive the terms of the full batch.
        teacher_logits: the teacher's logits on the clean images, (N, classes), for distillation, else None.
        memory: the tensors that the objective keeps from step to step (`Objective.memory`), the same in every process.
        memory_rows: the row of each image in those tensors of the memory that have a row per image, int64 (N,); None
            without a memory.
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
    teacher_logits: Tensor | None = None
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    memory_rows: Tensor | None = None

    def attack_inputs(
        self, rng: CounterRNG, reference: Tensor | None = None, label_smoothing: float = 0.0
    ) -> AttackInputs:
        """Return the batch as the inputs of an attack."""
        return AttackInputs(
            self.x,
            self.y,
            self.index,
            self.threat,
            rng,
            target=self.target,
            step_size=self.step_size,
            reference=reference,
            label_smoothing=label_smoothing,
        )


@dataclass(frozen=True)
class Step:
    """The terms of the loss and the logits of a training step, before reduction.

    Args:
        terms: terms of the loss by name, each (N,). Reductions multiply ``"clean"`` and ``"robust"`` by the class
            settings ``clean_weight`` and ``robust_weight`` (`classwise.training.reductions.base.per_image`).
        clean_logits: logits on the clean images, (N, classes), or None if not computed.
        robust_logits: logits on the attacked images, (N, classes), or None if not computed.
        steps: number of steps of the inner attack at whose start the image was classified correctly, (N,), or None if
            not counted.

    Raises:
        ClasswiseError: if a term is not one loss for each image.
    """

    terms: dict[str, Tensor]
    clean_logits: Tensor | None = None
    robust_logits: Tensor | None = None
    steps: Tensor | None = None

    def __post_init__(self) -> None:
        logits = self.clean_logits if self.robust_logits is None else self.robust_logits
        for name, term in self.terms.items():
            if logits is not None and term.shape != logits.shape[:1]:
                raise ClasswiseError(
                    f"the term {name!r} of the loss has shape {tuple(term.shape)} for {len(logits)} images; return one "
                    f"loss for each image, a tensor of shape {tuple(logits.shape[:1])}"
                )

    @property
    def logits(self) -> Tensor:
        """The logits on the attacked images, or on the clean images if the objective has no attack, (N, classes)."""
        logits = self.clean_logits if self.robust_logits is None else self.robust_logits
        assert logits is not None
        return logits

    def detached(self) -> Step:
        """Return the step without gradients."""
        others = (self.clean_logits, self.robust_logits, self.steps)
        detached = (None if other is None else other.detach() for other in others)
        return Step({name: term.detach() for name, term in self.terms.items()}, *detached)


def _criterion(value: object) -> object:
    """Build the criterion of a spec, which may name a function of logits and labels."""
    if not isinstance(value, str | dict):
        return value
    name, options = parse_spec(value, CRITERIA) if isinstance(value, str) else (value.get("name"), value)
    if isinstance(name, str) and ":" in name and not isinstance(CRITERIA.load(name), type):
        value = {**options, "name": "function", "path": name}
    return make(CRITERIA, value)


@configurable
class Objective(Described, ABC):
    """Base class of objectives. Subclasses are frozen dataclasses (`classwise.core.settings.config.configurable`).

    Args:
        criterion: the classification loss, such as ``{"name": "he"}`` for hypersphere embedding, or the path of a
            function, ``"package.module:function"``, from logits (N, C) and labels (N,) to losses (N,). Subclasses use
            its `scaled` model for every pass, and call it for the loss of logits and labels.
    """

    criterion: Annotated[Criterion, pydantic.BeforeValidator(_criterion)] = Softmax()

    #: Whether it has an inner attack.
    attacks: ClassVar[bool] = True
    #: Whether it distils a teacher, the model of its field ``teacher``.
    distils: ClassVar[bool] = False
    #: The class settings that it uses besides ``scale``, ``sampling``, those of its attack and those of weighted terms:
    #: ``beta`` (default: the field ``beta``) of a regulariser, ``clean_temperature`` and ``robust_temperature`` of a
    #: teacher's soft labels, ``pair_weight``, and by default the two of the loss of the criterion.
    uses: ClassVar[frozenset[str]] = frozenset({"logit_margin", "logit_adjustment"})
    #: The signals that it measures besides those of every objective.
    measures: ClassVar[frozenset[str]] = frozenset()
    #: The terms of its loss that class weights multiply.
    weighted_terms: ClassVar[frozenset[Term]] = frozenset({"clean", "robust"})
    #: The norms of the threats that it supports; empty for all of those that the attack supports.
    norms: ClassVar[tuple[Norm, ...]] = ()

    @property
    def attack_overhead(self) -> PassCounts:
        """The passes of `reference` and `points` besides the steps of the inner attack; ``cost`` is that of `step`."""
        return PassCounts()

    @property
    def divides_by_beta(self) -> bool:
        """Whether its terms are divided by 1 + beta."""
        return False

    def described(self) -> dict[str, Any]:
        """Return the fields for a spec; the default criterion is omitted, as in older recipes."""
        fields = {attribute.name: getattr(self, attribute.name) for attribute in dataclasses.fields(self)}
        if fields["criterion"] == Softmax():
            del fields["criterion"]
        else:
            fields["criterion"] = describe(CRITERIA, self.criterion)
        return fields

    def supported(self, threat: Threat) -> None:
        """Check that the objective supports a threat.

        Raises:
            ClasswiseError: if it does not.
        """
        if self.norms and threat.norm not in self.norms:
            supported = " and ".join(self.norms)
            raise ClasswiseError(f"{type(self).__name__} does not support {threat.norm}; it supports {supported}")

    @property
    def remembers(self) -> bool:
        """Whether it has a memory; by default, whether `memory` is overridden."""
        return type(self).memory is not Objective.memory

    def memory(
        self, images: int, shape: Sequence[int], classes: int, device: torch.device | str = "cpu"
    ) -> dict[str, Tensor]:
        """Return the tensors by name that the objective keeps from step to step; none by default.

        They are made once and saved with the state of the run. Each step has them in its batch, and changes them in
        place, alike in every process.

        Args:
            images: number of training images; pseudo-labelled ones follow the labelled ones.
            shape: channels, height and width of an image.
            classes: number of classes.
            device: the device of the images.
        """
        del images, shape, classes, device
        return {}

    def before_step(
        self, model: Forward, batch: TrainingBatch, settings: ClassSettings, step: int, rng: CounterRNG
    ) -> None:
        """Set the parts of the memory that depend on the number of the step or the fraction of training completed.

        It is not part of a CUDA graph. The trainer has frozen the model and set it to evaluation mode.

        Args:
            model: the model.
            batch: the full batch, in every process.
            settings: the class settings of the step.
            step: number of earlier steps of the run.
            rng: random numbers, of the epoch.
        """

    def inner(self, attack: Attack) -> Attack:
        """Return the attack of the inner maximisation, given the attack of the recipe."""
        return attack

    def reference(self, model: Forward, batch: TrainingBatch, settings: ClassSettings) -> Tensor | None:
        """Return the logits from which the inner attack moves away, (N, classes); None if it moves from the labels."""
        return None

    def points(
        self, model: Forward, batch: TrainingBatch, attack: Attack, settings: ClassSettings, rng: CounterRNG
    ) -> dict[str, Tensor]:
        """Solve the inner maximisation: adversarial images by name. The trainer has frozen the model."""
        if not self.attacks:
            return {}
        model = self.criterion.scaled(model, settings)
        reference = self.reference(model, batch, settings)
        inputs = self.attack_inputs(batch, rng, reference)
        return self.attacked(model, inputs, attack, batch.progress)

    def attack_inputs(self, batch: TrainingBatch, rng: CounterRNG, reference: Tensor | None = None) -> AttackInputs:
        """Return a batch as the inputs of the inner attack, with the label smoothing of the criterion."""
        return batch.attack_inputs(rng, reference, self.criterion.attack_smoothing)

    def attacked(self, model: Forward, inputs: AttackInputs, attack: Attack, progress: float) -> dict[str, Tensor]:
        """Run the inner attack at a fraction of training, on the scaled model: adversarial images by name."""
        return {"robust": attack.run(model, inputs)}

    @abstractmethod
    def step(self, model: Forward, batch: TrainingBatch, points: dict[str, Tensor], settings: ClassSettings) -> Step:
        """Compute the terms of the loss at these points."""

    def betas(self, batch: TrainingBatch, settings: ClassSettings) -> Tensor | float:
        """Return the beta of each image, (N,), or the field ``beta`` if the class settings have none."""
        beta = settings.of("beta", batch.y)
        return self.beta if beta is None else beta  # type: ignore[attr-defined]  # of those with a regulariser


def clean_logits(model: Forward, batch: TrainingBatch) -> Tensor:
    """Compute the logits on the clean images without gradients, (N, classes)."""
    with torch.no_grad():
        return model(batch.x)


def remembered(batch: TrainingBatch, name: str) -> Tensor:
    """A tensor of the objective's memory.

    Raises:
        ClasswiseError: if the batch has no memory.
    """
    if name not in batch.memory:
        raise ClasswiseError("this objective needs its memory of earlier steps; use classwise.train")
    return batch.memory[name]


def with_fields(attack: Attack, **fields: str | int) -> Attack:
    """Return the attack with some fields replaced.

    Args:
        attack: the attack.
        **fields: the new values.

    Raises:
        ClasswiseError: if the attack does not have these fields.
    """
    missing = fields.keys() - {attribute.name for attribute in dataclasses.fields(attack)}  # type: ignore[arg-type]
    if missing:
        raise ClasswiseError(
            f"this objective sets {' and '.join(sorted(missing))} of the inner attack, which {type(attack).__name__} "
            "does not have; use pgd"
        )
    return dataclasses.replace(attack, **fields)  # type: ignore[type-var]  # every attack is a dataclass
