"""The inputs of the guards: the outcomes of an audit, and a model with a sample of images."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, Engine, value_and_gradient
from classwise.attacks.engine.decisions import decide
from classwise.attacks.engine.rows import choose
from classwise.attacks.losses import margin, negative_margin
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes.table import ALL, CLEAN, Outcomes
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.precision import EXACT, Forward, Precision
from classwise.core.compute.rng import CounterRNG
from classwise.core.rounding import in_percent
from classwise.data.duplicates import Duplicates
from classwise.data.images import Batch
from classwise.models.logits import predicts, raised
from classwise.models.modes import evaluating, frozen
from classwise.models.normalization import InputScale
from classwise.stats.class_order import Chance, at_chance
from classwise.stats.counts import IntArray
from classwise.threat.ball import Threat
from classwise.threat.grid import rounded

TOLERANCE = 1e-4
"""Relative difference of clean margins up to which a model is the same on an image; batches of other sizes round
differently.
"""
_POLL = {"cpu": 1, "cuda": 8}
"""Steps between two checks whether an attack has succeeded on all images: a GPU waits for each of them."""


class AttackResult(NamedTuple):
    """The result of an attack on one image.

    Attributes:
        margin: the clean margin of the image at that time.
        success: whether it succeeded.
        passes: forward and backward passes up to its success or its end, and for the verification.
    """

    margin: float
    success: bool
    passes: int


class Memory(dict[Hashable, AttackResult]):
    """The results of attacks on single images, for one model with its weights on one data set.

    A key is an attack with all settings that decide its result, an image and its radius.
    """

    def has(self, key: Hashable, margin: float) -> bool:
        """Whether there is a result of an image that had the same clean margin as it has now."""
        return key in self and abs(self[key].margin - margin) <= TOLERANCE * (1 + abs(margin))


_memories: WeakKeyDictionary[nn.Module, tuple[tuple[str, str], Memory]] = WeakKeyDictionary()


def memory_of(model: nn.Module, model_hash: str, data_hash: str) -> Memory:
    """The results of a model; empty once its weights or the data are others.

    Only a module's own tensors are in its hash. Results are found only where its clean margins are the same, too; a
    change of nothing but the gradients is not noticed, and the mode ``"full"`` uses no results of earlier audits.

    Args:
        model: the module; nothing is kept once it is deleted.
        model_hash: SHA-256 of its parameters and buffers.
        data_hash: SHA-256 of pixels and labels.
    """
    state, memory = _memories.get(model, (None, Memory()))
    if state != (model_hash, data_hash):
        memory = Memory()
        _memories[model] = (model_hash, data_hash), memory
    return memory


SAMPLE = 128
"""Number of images in the sample of guards that run the model, balanced over classes."""
CLEAR = 64
"""Number of images, under a budget, of a guard with a symptom in the outcomes."""


@dataclass(eq=False)
class Probe:
    """A model and a sample of images on which guards run it.

    Passes have no padding, so that an image costs exactly the passes that a guard declares for it.

    Args:
        engine: an engine with the settings of the audit; its model returns logits.
        batch: the sample.
        threat: the threat for the sample.
        precision: the numerical settings for gradients.
        scale: the usual normalisation of the data set, if known.
        gradients: whether the model has gradients with respect to its input.
        taken: forward and backward passes of single images that guards have taken.
        outputs: the number of logits of each image, if it is known.
        memory: results of attacks on single images, which later audits of the model and the data may share.
    """

    engine: Engine
    batch: Batch
    threat: Threat
    precision: Precision = EXACT
    scale: InputScale | None = None
    gradients: bool = True
    taken: int = 0
    outputs: int | None = None
    memory: Memory = dataclasses.field(default_factory=Memory)

    def __len__(self) -> int:
        return len(self.batch.x)

    def first(self, count: int) -> Probe:
        """The probe with the first ``count`` images of its sample; its passes are counted from zero."""
        rows = slice(count)
        batch = Batch(*(tensor[rows] for tensor in self.batch))
        return dataclasses.replace(self, batch=batch, threat=self.threat.of(rows), taken=0)

    @cached_property
    def _float32(self) -> Forward:
        forward = Precision(channels_last=self.precision.channels_last).forward(self.engine.model)
        forward.classes = self.outputs
        return forward

    def logits_of(self, x: Tensor) -> Tensor:
        """Compute float32 logits (N, C), on the CPU; never in TF32."""
        self.taken += len(x)
        return self._logits_of(x)

    def _logits_of(self, x: Tensor) -> Tensor:
        model = self.engine.model
        with torch.no_grad(), evaluating(model), frozen(model), true_float32(x.device):
            parts = [self._float32(part) for part in torch.split(x, self.engine.batch_size)]
        return torch.cat(parts).cpu()

    @cached_property
    def logits(self) -> Tensor:
        """Float32 logits (N, C) of the sample, on the CPU."""
        return self.logits_of(self.batch.x)

    @cached_property
    def again(self) -> Tensor:
        """The logits of a second pass over the sample."""
        return self.logits_of(self.batch.x)

    @cached_property
    def labels(self) -> Tensor:
        """The labels of the sample, on the CPU."""
        return self.batch.y.cpu()

    def rows(self, mask: Tensor) -> Batch:
        """The images of a mask (N,)."""
        return self.at(mask.nonzero().squeeze(1))

    def at(self, places: Tensor) -> Batch:
        """The images at some positions (M,)."""
        here = places.to(self.batch.x.device)
        return Batch(*(tensor[here] for tensor in self.batch))

    def correct(self, logits: Tensor) -> Tensor:
        """Whether each row of logits predicts the label, bool (N,) (`predicts`)."""
        return predicts(logits, self.labels)

    @cached_property
    def wrong(self) -> Tensor:
        """Whether each clean image of the sample is misclassified or has no prediction, bool (N,)."""
        return ~self.correct(self.logits)

    @cached_property
    def images(self) -> IntArray:
        """Number of images of each class in the sample, (C,)."""
        return self.by_class(torch.ones_like(self.wrong))

    def by_class(self, mask: Tensor) -> IntArray:
        """Count the images of each class, (C,), for which the mask (N,) is true."""
        counts: IntArray = torch.bincount(self.labels[mask.cpu()], minlength=self.logits.shape[1]).numpy()
        return counts

    def margin_gradient(self, mask: Tensor) -> Tensor:
        """Gradient of the negative logit margin with respect to each image of a mask, shaped like these images.

        It is never in TF32.
        """
        model, chosen = self.engine.model, self.rows(mask)
        self.taken += 2 * len(chosen.x)
        forward, size = self.precision.forward(model), self.engine.batch_size
        with evaluating(model), frozen(model), true_float32(chosen.x.device):
            parts = [
                value_and_gradient(lambda x: raised(forward(x)), x, partial(negative_margin, y=y))[1]
                for x, y in zip(torch.split(chosen.x, size), torch.split(chosen.y, size), strict=True)
            ]
        return torch.cat(parts)

    def succeeds_on(self, mask: Tensor, attack: Attack, threat: Threat | None = None) -> Tensor:
        """Run one start of an attack on the images of a mask; whether it succeeded on each, bool (N,).

        The first iterate that is misclassified in the attack's precision, else the last one, is verified in float32.
        All images take all steps, unless the attack has succeeded on all of a batch earlier. Images with a
        stored result are not attacked again, but their passes are counted.

        Args:
            mask: the images, bool (N,).
            attack: an attack without a reference, all of whose steps take the same passes.
            threat: the ball; None: that of the audit.
        """
        ball = threat or self.threat
        index, radius = self.batch.index.tolist(), ball.radius(self.batch.x).flatten().expand(len(self)).tolist()
        engine = self.engine
        settings = (attack, ball.norm, engine.seed, self.precision, engine.grid, engine.passes.repeats)
        keys = [(settings, *image) for image in zip(index, radius, strict=True)]
        margins = margin(raised(self.logits), self.labels).tolist()
        batches = [batch for batch in torch.split(mask.nonzero().squeeze(1), self.engine.batch_size) if len(batch)]
        unknown = mask & ~torch.tensor([self.memory.has(*pair) for pair in zip(keys, margins, strict=True)])
        for places in torch.split(unknown.nonzero().squeeze(1), self.engine.batch_size):
            for row, result in zip(places.tolist(), self._attack(places, attack, ball), strict=True):
                self.memory[keys[row]] = AttackResult(margins[row], *result)
        success = torch.zeros_like(mask)
        for places in batches:
            results = [self.memory[keys[row]] for row in places.tolist()]
            success[places] = torch.tensor([result.success for result in results])
            self.taken += len(places) * max(result.passes for result in results)
        return success

    def _attack(self, places: Tensor, attack: Attack, threat: Threat) -> list[tuple[bool, int]]:
        """Success and passes of the attack on each image of one batch; the passes are those of a batch of it alone."""
        if not len(places):
            return []
        index, x, y = (tensor[places.to(self.batch.x.device)] for tensor in self.batch)
        threat = threat.of(places, x.device)
        inputs = AttackInputs(x, y, index, threat, CounterRNG(self.engine.seed, "attack"))
        found, hit = x, torch.zeros_like(y, dtype=torch.bool)
        passes = torch.zeros_like(y)
        engine = Engine(self.engine.model, precision=self.precision, batch_size=len(x), seed=self.engine.seed)
        poll = _POLL.get(x.device.type, 1)
        with engine.forward_for(attack, x) as model:
            state = attack.start(model, inputs)
            for step in range(1, attack.length + 1):
                state = attack.step(model, inputs, state)
                passes = torch.where(hit, passes, (model.forwards + model.backwards) // len(x))
                fresh = ~hit & ((state["margin"] < 0) | state["margin"].isnan())
                found, hit = choose(fresh, state["seen"], found), hit | fresh
                if step % poll == 0 and bool(hit.all()):
                    break
        final = choose(hit, found, threat.project(state["x"], x))
        success, passes = ~self._correct(final, x, y, threat), passes + self.verification
        return [*zip(success.tolist(), passes.tolist(), strict=True)]

    @property
    def verification(self) -> int:
        """Number of passes that decide whether an attacked image is correct."""
        return self.engine.passes.repeats.count

    def correct_at(self, x: Tensor, clean: Tensor, y: Tensor, threat: Threat) -> Tensor:
        """Whether attacked images count as correct by the rules of the audit: its repeats and its grid, bool (N,)."""
        self.taken += self.verification * len(x)
        return self._correct(x, clean, y, threat)

    def _correct(self, x: Tensor, clean: Tensor, y: Tensor, threat: Threat) -> Tensor:
        stored = x if self.engine.grid is None else rounded(x, clean, threat)
        passes = (self._logits_of(stored) for _ in range(self.verification))
        return decide(passes, y.cpu(), self.engine.passes.repeats.needed).correct


class Training(NamedTuple):
    """How a model was trained.

    Attributes:
        attack: the attack of the training; None for a training on clean images.
        images: hash of the training images, with those held out for validation; empty if unknown.
        validation: hash of validation images of their own; empty if there are none.
    """

    attack: Attack | None
    images: str = ""
    validation: str = ""


@dataclass(frozen=True)
class Evidence:
    """The input of every guard.

    Args:
        outcomes: the outcomes of the audit.
        attacks: the attacks by label, if known.
        was_training: whether a module of the model was in training mode when it was passed to the audit.
        untrained: whether the weights are the initial weights of a network of the zoo; None for another network.
        no_gradient: why the model has no gradient with respect to its input; empty if it has one.
        overwrites: whether the model writes into its input.
        duplicates: how often each image that was read occurs; None if there are no images.
        fitted: how many of the images a logit adjustment of the model was fitted on.
        training: how the model was trained, if known.
        labels: the labels of the classes in the data, which ``classes=`` takes in another order; empty: the names of
            the classes; None: the order of the data set is fixed.
        warned: the guards that have warned before.
        probe: the model and a sample; None without a model, or if the time limit is reached.
    """

    outcomes: Outcomes
    attacks: Mapping[str, Attack] = dataclasses.field(default_factory=dict)
    was_training: bool = False
    untrained: bool | None = None
    no_gradient: str = ""
    overwrites: bool = False
    duplicates: Duplicates | None = None
    fitted: int = 0
    training: Training | None = None
    labels: tuple[str, ...] | None = ()
    warned: tuple[str, ...] = ()
    probe: Probe | None = None

    @cached_property
    def clean_predictions(self) -> tuple[IntArray, IntArray]:
        """Labels and predictions of the clean images, (N,) each; the prediction is -1 where there is none."""
        rows = self.outcomes.frame[self.outcomes.frame["attack"] == CLEAN]
        labels, predictions = rows["label"], rows["prediction"].fillna(-1)
        return labels.to_numpy(dtype=np.int64), predictions.to_numpy(dtype=np.int64)

    @cached_property
    def chance(self) -> Chance | None:
        """The clean accuracy and that of chance; None if it is significantly above that, or nearer to 1."""
        # Few images are never significant, so the accuracy must also be nearer to chance than to 1.
        found = at_chance(*self.clean_predictions)
        return found if found is not None and found.accuracy < (1 + found.expected) / 2 else None

    @cached_property
    def clean(self) -> Tensor:
        """Whether the clean pass of the audit classifies each image of the sample correctly, bool (N,)."""
        return self._correct(CLEAN)

    @cached_property
    def survivors(self) -> Tensor:
        """Whether each image of the sample is robust to the whole suite, bool (N,).

        These include images on which the suite did not run to its end: nothing succeeded on them so far.
        """
        return self._correct(ALL)

    def _correct(self, name: str) -> Tensor:
        assert self.probe is not None
        correct = self.outcomes.index[self.outcomes.verdicts(name) != 0]
        return torch.isin(self.probe.batch.index.cpu(), torch.from_numpy(correct))

    @cached_property
    def attack_passes(self) -> int:
        """Forward and backward passes of single images that the attacks took."""
        return sum(passes.forward + passes.to_image for label, passes in self.outcomes.passes.items() if label != CLEAN)

    @property
    def black_box(self) -> tuple[str, ...]:
        """The attacks that ran and used no backward pass."""
        return tuple(label for label in self.attacked if not self.outcomes.passes[label].to_image)

    @property
    def attacked(self) -> tuple[str, ...]:
        """The attacks that ran on at least one image."""
        passes = self.outcomes.passes
        ran = {label for label, counts in passes.items() if counts.forward and label != CLEAN}
        return tuple(label for label in self.outcomes.attacks if label in ran)

    def unsolved(self, names: tuple[str, ...]) -> str:
        """What to do first if some of these guards have warned; empty if none has."""
        found = [name for name in self.warned if name in names]
        return f"first solve the problem of {' and '.join(found)}" if found else ""

    def name_of(self, label: int) -> str:
        """The quoted name of a class."""
        return repr(self.outcomes.class_names[label])


class Undecided(NamedTuple):
    """The result of a guard that could neither detect nor exclude its problem: why, and if more images could."""

    reason: str
    for_images: bool = False


def undecided(needed: float, images: int) -> Result:
    """The result of a guard that needs more images; not applicable if these are more than any sample has.

    Args:
        needed: number of images with which the guard could decide.
        images: number of images that it had.
    """
    if needed > SAMPLE:
        return NOT_APPLICABLE
    return Undecided(
        f"{math.ceil(needed)} images needed, and there {'is' if images == 1 else 'are'} {images}", for_images=True
    )


class NotApplicable:
    """The result of a guard whose problem cannot occur in the audit, or which has nothing to look at."""


NOT_APPLICABLE = NotApplicable()
Result = tuple[str, float] | Undecided | NotApplicable | None
"""The result of a guard: the sentence of a warning and the number behind it (NaN: none); None: no problem found."""
Reads = Literal["outcomes", "sample", "gradients"]
"""What a guard reads: the outcomes only; also the model and the sample; also the gradients of the model."""


@dataclass(frozen=True)
class Guard:
    """A check of an audit, which the decorator `guard` makes of a function.

    Args:
        function: takes the evidence and, unless it reads the outcomes only, the model with the sample.
        reads: what it reads, or a function of the evidence that decides; without it the guard does not apply.
        passes: a function of the same arguments: the forward and backward passes of single images that the guard takes
            at most, besides the logits of the sample. It takes as many unless its attack succeeds on all images before
            the last step.
        most: the largest number of these passes per image of any sample, if one pass decides about an image.
        priority: a budget omits the guards of the highest numbers first; 0: never omitted.
        symptom: whether the outcomes show a symptom of the problem. A budget does not omit the guard then, and its
            sample has `CLEAR` images.
        early: whether the clean pass and the settings decide, so that an audit warns before the attacks, too.
        presumes: the guards whose problems must be solved before the advice of this one applies. It runs after all
            others, so that it can name those of them that have warned (`Evidence.unsolved`).
        pixelwise: whether it perturbs pixels, or expects gradient-based attacks to be stronger. A grid finds more
            rotations and translations than gradients do (Engstrom et al., ICML 2019), so that is no warning: the guard
            does not apply to spatial threats.
    """

    function: Callable[..., Result]
    reads: Reads | Callable[[Evidence], Reads] = "outcomes"
    passes: Callable[[Evidence, Probe], int] = lambda *_: 0
    most: int = 0
    priority: int = 0
    symptom: Callable[[Evidence], bool] | None = None
    early: bool = False
    presumes: tuple[str, ...] = ()
    pixelwise: bool = False

    @property
    def name(self) -> str:
        """The name of the function, with hyphens."""
        return self.function.__name__.replace("_", "-")

    def __call__(self, evidence: Evidence) -> AuditWarning | Undecided | NotApplicable | None:
        """Run the guard."""
        arguments = self._arguments(evidence)
        result = NOT_APPLICABLE if arguments is None else self.function(*arguments)
        if result is None or isinstance(result, Undecided | NotApplicable):
            return result
        return AuditWarning(self.name, *result)

    def cost(self, evidence: Evidence) -> int:
        """The passes of the guard; 0 if it does not apply, or reads the outcomes only."""
        arguments = self._arguments(evidence) or ()
        return self.passes(*arguments) if len(arguments) == 2 else 0

    def shows(self, evidence: Evidence) -> bool:
        """Whether the outcomes show a symptom of its problem."""
        return self.symptom is not None and self.symptom(evidence)

    def reads_of(self, evidence: Evidence) -> Reads:
        """What the guard reads of this evidence."""
        return self.reads(evidence) if callable(self.reads) else self.reads

    def _arguments(self, evidence: Evidence) -> tuple[Any, ...] | None:
        """The arguments of the function; None if the guard does not apply."""
        reads, probe = self.reads_of(evidence), evidence.probe
        if self.pixelwise and evidence.outcomes.meta.norm == "spatial":
            return None
        if reads == "outcomes":
            return (evidence,)
        return None if probe is None or (reads == "gradients" and not probe.gradients) else (evidence, probe)


def guard(**about: Any) -> Callable[[Callable[..., Result]], Guard]:
    """Make a guard of a function; ``about`` are the fields of `Guard` other than ``function``."""
    return partial(Guard, **about)


def percent(share: float) -> str:
    """Format a fraction in percent."""
    return f"{in_percent(share):.1f} %"


def quoted(labels: tuple[str, ...]) -> str:
    """Format labels as a quoted, comma-separated list."""
    return ", ".join(repr(label) for label in labels)
