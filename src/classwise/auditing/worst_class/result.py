"""The result of a search for the worst class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from classwise.auditing.outcomes.display import TextDisplay
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import CLEAN
from classwise.core.errors import printable
from classwise.core.rounding import in_percent
from classwise.core.settings.arguments import checked
from classwise.stats.best_arm import WorstClassVerdict


@checked
@dataclass(frozen=True)
class WorstClass(TextDisplay):
    """The worst class at a stated confidence, and the record of the search.

    Attributes:
        verdict: the number of the worst class, the intervals of the lowest class accuracy of these and of new images,
            and the classes that may be the worst.
        by_class: a row per class: ``n``; ``clean`` and ``first``, the accuracies of all images without an attack and
            under the first attack; ``estimate``, ``low`` and ``high``, the accuracy under the whole suite and its
            interval; ``unsettled``, the number of survivors on which not all attacks ran; ``may_be_worst``.
        images: a row per image: ``index``, ``name`` (null for an image without one), ``label``, ``first_success`` (an
            attack, ``clean``, or null), ``settled`` (whether the verdict under the whole suite is known), ``forwards``,
            ``backwards``.
        meta: model, data, threat and suite, as in an audit.
        full_audit_passes: the passes of a full audit, estimated from the attacked images.
        rounds: the number of sampling rounds.
        seconds: the duration of the search, over all of its runs.
        environment: command, versions, machine and model.

    Example:
        >>> import classwise as cw
        >>> data = cw.load_data("digits", subset=40)
        >>> model = cw.load_model("small-cnn", data=data, width=0.1)
        >>> result = cw.find_worst_class(model, data, "Linf:0.1", ["fgsm", "pgd:steps=2"])
        >>> len(result.by_class), len(result.images)
        (10, 40)
    """

    verdict: WorstClassVerdict
    by_class: pd.DataFrame
    images: pd.DataFrame
    meta: Meta
    full_audit_passes: float
    rounds: int
    seconds: float
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        verdict = self.verdict
        at = f"{in_percent(verdict.estimate):.1f} % [{in_percent(verdict.low):.1f}, {in_percent(verdict.high):.1f}]"
        about = (self.meta.model, self.meta.threat, f"{self.worst} {at}", "" if verdict.settled else "not settled")
        return printable(f"<WorstClass: {'; '.join(filter(None, about))}>")

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
        """The number of forward and backward passes of single images."""
        return int(self.images["forwards"].sum() + self.images["backwards"].sum())

    @property
    def these_images(self) -> str:
        """The images of the search, in words: ``these 200 images``."""
        number = len(self.images)
        return "this image" if number == 1 else f"these {number:,} images"

    @property
    def population(self) -> str:
        """The population of the guarantee, in words."""
        name = " ".join(filter(None, (self.meta.data, self.meta.split)))
        return f"{self.these_images} ({name})"

    @property
    def suite(self) -> str:
        """The suite that the guarantee is relative to, in words."""
        attacks = ", ".join(label for label in self.meta.applicable if label != CLEAN)
        skipped = f" (not applicable without gradients: {', '.join(self.meta.not_applicable)})"
        skipped = skipped if self.meta.not_applicable else ""
        return f"{attacks} at {self.meta.threat} with seed {self.meta.seed}{skipped}"

    @property
    def sentence(self) -> str:
        """The guarantee, with its population and suite."""
        return self.verdict.sentence(self.meta.class_names, self.population, self.suite)
