"""The typed plan of an evaluation: its attacks, its threat, and the options that every evaluation shares."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, TypedDict

import torch
from pydantic import Field
from torch import nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine
from classwise.auditing.artifacts import Kind, kinds_of
from classwise.auditing.batch_sizes import USUAL_BATCH
from classwise.auditing.guard_report import GuardMode
from classwise.auditing.partition import MOST_SHARDS, Shard
from classwise.auditing.suite import Suite, in_first_phase
from classwise.core.arguments import BatchSize
from classwise.core.config import Seed
from classwise.core.determinism import deterministic_algorithms
from classwise.core.errors import ClasswiseError
from classwise.core.precision import FLOAT32, Dtype, Precision, fastest, precision_of
from classwise.core.repeats import ONCE, RepeatCount, RepeatRule, Repeats
from classwise.core.threat import Threat
from classwise.core.threat_text import Grid

_CPU = torch.device("cpu")


class AttackOptions(TypedDict, total=False):
    """Options of `audit`, `robustness_curve`, `find_worst_class` and `estimate`; all are optional.

    Attributes:
        precision: precision of the gradients, a `Precision`, ``"float32"`` or ``"bfloat16"``; success is decided in
            float32. Default: the fastest on the device (`classwise.core.precision.fastest`).
        batch_size: images on the device at once, at least 32. Results repeat bit for bit at one batch size. Default:
            128, on a GPU 1024 or as many as there are; for images above 64 x 64 pixels as many as fit, which is logged.
        seed: seed of the attacks' random numbers (default: 0).
    """

    precision: Precision | Dtype | None
    batch_size: BatchSize | None
    seed: Seed


class ShardedOptions(AttackOptions, total=False):
    """Options of evaluations in shards; all are optional.

    Attributes:
        shard: attack only one shard of the images, such as ``"7/40"``. The folder of the shard of an evaluation in
            ``out`` is ``out/shards/007-of-040``.
        shards: merge this number of finished shards of the evaluation in ``out``.
    """

    shard: Annotated[str | tuple[int, int] | Shard, "text such as '7/40', a pair of integers, or a Shard"] | None
    shards: Annotated[int, Field(ge=1, le=MOST_SHARDS)] | None


class AuditOptions(ShardedOptions, total=False):
    """Further options of `audit`; all are optional.

    Attributes:
        early_stop: stop attacking an image at the first success (default: True). False: every attack runs all its
            steps on every image, and the last iterate counts.
        cascade: run each attack on the survivors of the previous attacks only. Default: True if ``attacks`` contains a
            named suite, such as ``autoattack``.
        settle: estimate the accuracy under ``autoattack`` from a sample, until the ends of its intervals are within
            this distance (a fraction). Default: None, every attack on every image.
        save: tensors to save for every attacked image: ``"logits"``, ``"features"``, ``"images"``.
        trace: indices of the images whose confidences are recorded step by step.
        guards: ``"auto"`` (default) limits the guards to 20 % of the passes of the attacks, ``"full"`` runs all,
            ``"off"`` none. Outcomes do not depend on it.
        repeats: number of passes that decide whether an image is correct, each with new random numbers of the model;
            for models with random outputs (default: 1).
        repeat_rule: ``"majority"`` (default): an image is correct if more than half of the passes are; ``"all"``: if
            all are.
        grid: ``"8bit"``: adversarial images are rounded to multiples of 1/255 inside the ball before success is
            decided, as stored images are. Default: None.
    """

    early_stop: bool
    cascade: bool | None
    settle: Annotated[float, Field(gt=0, lt=1)] | None
    save: Kind | Sequence[Kind]
    trace: Sequence[int]
    guards: GuardMode
    repeats: RepeatCount
    repeat_rule: RepeatRule
    grid: Grid | None


def chosen_arithmetic(options: AttackOptions) -> AbstractContextManager[None]:
    """Context of all passes of an evaluation: with deterministic algorithms if the options ask for them."""
    return deterministic_algorithms(enabled=(precision_of(options.get("precision")) or FLOAT32).deterministic)


@dataclass(frozen=True)
class Plan:
    """How an evaluation attacks each image.

    Args:
        suite: the attacks.
        threat: the ball; its radius is one number, or one for each image of the data.
        early_stop: whether an attack stops at its first success.
        cascade: whether an attack runs on the survivors of the previous attacks only.
        precision: precision of the gradients.
        batch_size: images on the device at once.
        seed: seed of the attacks' random numbers.
        save: tensors to save.
        trace: indices of the images whose confidences are recorded step by step.
        settle: run the second phase on a sample, until the intervals are this narrow; None: on every survivor.
        guards: how many guards run.
        repeats: the passes that decide whether an image is correct.
        grid: the grid that adversarial images are rounded to.

    Raises:
        ClasswiseError: if an attack does not support the norm, a cascade is requested without early stop, ``settle``
            without a cascade, or a grid for the last iterates of an attack that minimises the distance.
    """

    suite: Suite
    threat: Threat
    early_stop: bool
    cascade: bool
    precision: Precision
    batch_size: int
    seed: int
    save: tuple[Kind, ...]
    trace: tuple[int, ...]
    settle: float | None = None
    guards: GuardMode = "auto"
    repeats: Repeats = ONCE
    grid: Grid | None = None

    @classmethod
    def of(cls, suite: Suite, threat: Threat, options: AuditOptions, device: torch.device = _CPU) -> Plan:
        """The plan of a suite with these options on a device, defaults filled in."""
        cascade = options.get("cascade")
        return cls(
            suite=suite,
            threat=threat,
            early_stop=options.get("early_stop", True),
            cascade=suite.cascade if cascade is None else cascade,
            precision=precision_of(options.get("precision")) or fastest(device),
            batch_size=options.get("batch_size") or USUAL_BATCH,
            seed=options.get("seed", 0),
            save=kinds_of(options.get("save", ())),
            trace=tuple(int(index) for index in options.get("trace", ())),
            settle=options.get("settle"),
            guards=options.get("guards", "auto"),
            repeats=Repeats(options.get("repeats", 1), options.get("repeat_rule", "majority")),
            grid=options.get("grid"),
        )

    def __post_init__(self) -> None:
        for label, attack in self.suite.attacks.items():
            if self.threat.norm not in attack.norms:
                supported = " and ".join(attack.norms)
                raise ClasswiseError(f"attack {label!r} does not support {self.threat.norm}; it supports {supported}")
            if self.grid is not None and attack.minimises and not self.early_stop:
                raise ClasswiseError(
                    f"attack {label!r} minimises the distance, and rounding moves its nearest adversarial examples; "
                    f"omit grid={self.grid!r}, or use early_stop=True"
                )
        if self.cascade and not self.early_stop:
            raise ClasswiseError("cascade=True requires early_stop=True, as each attack runs on survivors only")
        if self.settle is not None and not self.cascade:
            raise ClasswiseError("settle requires cascade=True, as the second phase runs on survivors only")

    @property
    def first_phase(self) -> dict[str, Attack]:
        """The attacks that run on all images; with ``settle`` those of AutoAttack that the suite ``fast`` has."""
        every = self.suite.attacks.items()
        return {label: attack for label, attack in every if self.settle is None or in_first_phase(label)}

    @property
    def second_phase(self) -> dict[str, Attack]:
        """The attacks that run on a sample of the survivors."""
        first = self.first_phase
        return {label: attack for label, attack in self.suite.attacks.items() if label not in first}

    def engine(self, model: nn.Module, batch_size: int | None = None) -> Engine:
        """An engine for the model with these settings; ``batch_size`` replaces the plan's."""
        return Engine(
            model,
            precision=self.precision,
            batch_size=batch_size or self.batch_size,
            early_stop=self.early_stop,
            seed=self.seed,
            repeats=self.repeats,
            grid=self.grid,
        )
