"""The typed plan of an evaluation: its attacks, its threat, and the options that every evaluation shares."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from classwise.attacks.engine import Engine
from classwise.auditing.evaluation.evaluation import STORED, Evaluation, complete
from classwise.auditing.run.batch_sizes import USUAL_BATCH
from classwise.auditing.run.sampling import Sampling
from classwise.auditing.run.suite import Suite
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.compute.precision import FLOAT32, Dtype, Precision, fastest, precision_of
from classwise.core.compute.repeats import Repeats
from classwise.core.errors import ClasswiseError
from classwise.threat.ball import Threat

_CPU = torch.device("cpu")


def chosen_arithmetic(precision: Precision | Dtype | None) -> AbstractContextManager[None]:
    """Context of all passes of an evaluation: with deterministic algorithms if the precision asks for them."""
    return deterministic_algorithms(enabled=(precision_of(precision) or FLOAT32).deterministic)


@dataclass(frozen=True)
class Plan:
    """How an evaluation attacks each image: what is asked, as the suite, the threat and the device complete it.

    Args:
        suite: the attacks.
        threat: the ball; its radius is one number, or one for each image of the data.
        asked: all options (`classwise.auditing.evaluation.evaluation.Evaluation`).
        cascade: whether an attack runs on the survivors of the previous attacks only.
        precision: precision of the gradients.
        batch_size: images on the device at once.
        sampling: which attacks run on a sample of the images; None: every attack runs on all.

    Raises:
        ClasswiseError: if an attack does not support the norm, a cascade is requested without early stop, ``settle``
            without a cascade, or a grid for the last iterates of an attack that minimises the distance.
    """

    suite: Suite
    threat: Threat
    asked: Evaluation
    cascade: bool
    precision: Precision
    batch_size: int
    sampling: Sampling | None = None

    @classmethod
    def of(cls, suite: Suite, threat: Threat, options: Evaluation, device: torch.device = _CPU) -> Plan:
        """The plan of a suite with these options on a device."""
        asked = complete(options)
        return cls(
            suite=suite,
            threat=threat,
            asked=asked,
            cascade=suite.cascade if asked["cascade"] is None else asked["cascade"],
            precision=(precision_of(asked["precision"]) or fastest(device)).on(device),
            batch_size=asked["batch_size"] or USUAL_BATCH,
            sampling=None if asked["settle"] is None else Sampling.of(asked["settle"], suite.attacks, asked["seed"]),
        )

    def __post_init__(self) -> None:
        grid = self.asked["grid"]
        for label, attack in self.suite.attacks.items():
            if self.threat.norm not in attack.norms:
                supported = " and ".join(attack.norms)
                raise ClasswiseError(f"attack {label!r} does not support {self.threat.norm}; it supports {supported}")
            if grid is not None and attack.minimises and not self.early_stop:
                raise ClasswiseError(
                    f"attack {label!r} minimises the distance, and rounding moves its nearest adversarial examples; "
                    f"omit grid={grid!r} (--grid {grid}), or use early_stop=True (--early-stop)"
                )
        if self.cascade and not self.early_stop:
            raise ClasswiseError("cascade requires early_stop=True (--early-stop): each attack runs on survivors only")
        if self.sampling is not None and not self.cascade:
            raise ClasswiseError("settle requires cascade=True (--cascade), as the second phase runs on survivors only")

    @property
    def early_stop(self) -> bool:
        """Whether an attack stops at its first success."""
        return self.asked["early_stop"]

    @property
    def repeats(self) -> Repeats:
        """The passes that decide whether an image is correct."""
        return Repeats(self.asked["repeats"], self.asked["repeat_rule"])

    def with_options(self, **options: Any) -> Plan:
        """The plan with other values of options that do not change its attacks."""
        return replace(self, asked=complete(cast("Evaluation", {**self.asked, **options})))

    def settings(self, device: torch.device) -> dict[str, Any]:
        """The options that the metadata of the outcomes state, as JSON values, on a device."""
        values: dict[str, Any] = {name: self.asked.get(name) for name in STORED}
        resolved = {"cascade": self.cascade, "batch_size": self.batch_size, "repeat_rule": self.repeats.rule}
        return values | resolved | {"precision": self.precision.recorded(device), "policy": None}

    def engine(self, model: nn.Module, batch_size: int | None = None, classes: int | None = None) -> Engine:
        """An engine for the model with these settings.

        Args:
            model: the model.
            batch_size: images on the device at once; None: those of the plan.
            classes: the number of logits, if it is known; another one is refused.
        """
        return Engine(
            model,
            precision=self.precision,
            batch_size=batch_size or self.batch_size,
            early_stop=self.early_stop,
            seed=self.asked["seed"],
            repeats=self.repeats,
            grid=self.asked["grid"],
            classes=classes,
        )
