"""The result of a search for the worst class."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from classwise.auditing.meta import Meta
from classwise.auditing.outcomes import CLEAN
from classwise.stats.best_arm import Verdict


@dataclass(frozen=True)
class WorstClass:
    """The worst class, at a stated confidence, and how it was found.

    Attributes:
        verdict: the worst class by number, its interval, the classes that may be the worst.
        by_class: a row per class: ``n``, the accuracies ``clean`` and ``first`` (after the first attack) of all images,
            ``estimate``, ``low`` and ``high`` under the whole suite, ``unsettled`` survivors, ``may_be_worst``.
        images: a row per image: ``index``, ``label``, ``first_success`` (an attack, ``clean``, or nothing), ``settled``
            (whether all attacks of the suite have spoken), ``forwards``, ``backwards``.
        meta: of model, data, threat and suite, as an audit has it.
        full_audit_passes: passes that a full audit would take, estimated from the images that were attacked.
        rounds: how many rounds of sampling were run.
        seconds: how long it took.

    Example:
        >>> import classwise as cw
        >>> data = cw.load_data("digits", subset=40)
        >>> model = cw.load_model("small-cnn", data=data, width=0.1)
        >>> result = cw.find_worst_class(model, data, "Linf:0.1", ["fgsm", "pgd:steps=2"])
        >>> len(result.by_class), len(result.images)
        (10, 40)
    """

    verdict: Verdict
    by_class: pd.DataFrame
    images: pd.DataFrame
    meta: Meta
    full_audit_passes: float
    rounds: int
    seconds: float

    @property
    def worst(self) -> str:
        """The name of the worst class."""
        return self.meta.class_names[self.verdict.worst]

    @property
    def possibly(self) -> tuple[str, ...]:
        """The names of the classes that may be the worst; the true one is among them at the stated confidence."""
        return tuple(self.meta.class_names[label] for label in self.verdict.possibly)

    @property
    def passes(self) -> int:
        """Forward and backward passes of single images."""
        return int(self.images["forwards"].sum() + self.images["backwards"].sum())

    @property
    def population(self) -> str:
        """The images that the guarantee is about."""
        name = " ".join(filter(None, (self.meta.data, self.meta.split)))
        return f"these {len(self.images):,} images ({name})"

    @property
    def suite(self) -> str:
        """The attacks that the guarantee is relative to."""
        attacks = ", ".join(label for label in self.meta.applicable if label != CLEAN)
        left = f" (not applicable without gradients: {', '.join(self.meta.not_applicable)})"
        left = left if self.meta.not_applicable else ""
        return f"{attacks} at {self.meta.threat} with seed {self.meta.seed}{left}"

    @property
    def sentence(self) -> str:
        """What is guaranteed, of which population, relative to which suite."""
        return self.verdict.sentence(self.meta.class_names, self.population, self.suite)
