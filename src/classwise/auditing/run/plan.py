"""The typed plan of an evaluation: its attacks, its threat, and the options that every evaluation shares."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from classwise.attacks.engine import Engine
from classwise.auditing.guards.report import GuardMode
from classwise.auditing.outcomes.artifacts import Kind, kinds_of
from classwise.auditing.run.batch_sizes import USUAL_BATCH
from classwise.auditing.run.options import DEFAULTS, AuditOptions
from classwise.auditing.run.sampling import Sampling
from classwise.auditing.run.suite import Suite
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.compute.precision import FLOAT32, Dtype, Precision, fastest, precision_of
from classwise.core.compute.repeats import ONCE, Repeats
from classwise.core.errors import ClasswiseError
from classwise.threat.ball import Threat
from classwise.threat.text import Grid

_CPU = torch.device("cpu")


def chosen_arithmetic(precision: Precision | Dtype | None) -> AbstractContextManager[None]:
    """Context of all passes of an evaluation: with deterministic algorithms if the precision asks for them."""
    return deterministic_algorithms(enabled=(precision_of(precision) or FLOAT32).deterministic)


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
        sampling: which attacks run on a sample of the images; None: every attack runs on all.
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
    sampling: Sampling | None = None
    guards: GuardMode = "auto"
    repeats: Repeats = ONCE
    grid: Grid | None = None

    @classmethod
    def of(cls, suite: Suite, threat: Threat, options: AuditOptions, device: torch.device = _CPU) -> Plan:
        """The plan of a suite with these options on a device, defaults filled in."""
        given: AuditOptions = {**DEFAULTS, **options}
        cascade, settle = given.get("cascade"), given.get("settle")
        return cls(
            suite=suite,
            threat=threat,
            early_stop=given["early_stop"],
            cascade=suite.cascade if cascade is None else cascade,
            precision=(precision_of(given.get("precision")) or fastest(device)).on(device),
            batch_size=given.get("batch_size") or USUAL_BATCH,
            seed=given["seed"],
            save=kinds_of(given["save"]),
            trace=tuple(int(index) for index in given["trace"]),
            sampling=None if settle is None else Sampling.of(settle, suite.attacks, given["seed"]),
            guards=given["guards"],
            repeats=Repeats(given["repeats"], given["repeat_rule"]),
            grid=given.get("grid"),
        )

    def __post_init__(self) -> None:
        for label, attack in self.suite.attacks.items():
            if self.threat.norm not in attack.norms:
                supported = " and ".join(attack.norms)
                raise ClasswiseError(f"attack {label!r} does not support {self.threat.norm}; it supports {supported}")
            if self.grid is not None and attack.minimises and not self.early_stop:
                raise ClasswiseError(
                    f"attack {label!r} minimises the distance, and rounding moves its nearest adversarial examples; "
                    f"omit grid={self.grid!r} (--grid {self.grid}), or use early_stop=True (--early-stop)"
                )
        if self.cascade and not self.early_stop:
            raise ClasswiseError("cascade requires early_stop=True (--early-stop): each attack runs on survivors only")
        if self.sampling is not None and not self.cascade:
            raise ClasswiseError("settle requires cascade=True (--cascade), as the second phase runs on survivors only")

    def recorded(self, device: torch.device) -> dict[str, Any]:
        """What the metadata of the outcomes state of the plan on a device."""
        return {
            "threat": str(self.threat),
            "norm": self.threat.norm,
            "early_stop": self.early_stop,
            "cascade": self.cascade,
            "settle": None if self.sampling is None else self.sampling.settle,
            "seed": self.seed,
            "precision": self.precision.recorded(device),
            "repeats": self.repeats.count,
            "repeat_rule": self.repeats.rule,
            "grid": self.grid,
        }

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
