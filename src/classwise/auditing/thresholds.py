"""Thresholds that fail a build, such as ``worst(all).low < 0.2``, parsed before any evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from classwise.auditing.conditions import COMPARISONS, Condition, condition_text
from classwise.auditing.outcomes import CLEAN
from classwise.auditing.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError, unknown
from classwise.stats.bounds import MEASURES, BoundedCounts, Bounds
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals

ACCURACY = "accuracy"
"""The measure of a single class."""
ENDS = ("low", "high")
"""The ends of an interval."""
_NAMES = {measure.partition(".")[0] for measure in MEASURES}


@dataclass(frozen=True)
class Threshold:
    """A condition that compares a measure of an audit, or the accuracy of one class, with a limit.

    Attributes:
        measure: a key of `classwise.stats.bounds.MEASURES`; of a class ``accuracy``, ``accuracy.low`` or
            ``accuracy.high``, the ends of its interval.
        attack: one of `Audit.names`.
        comparison: ``<``, ``<=``, ``>`` or ``>=``.
        limit: the number on the right, a fraction.
        group: name of the class, or of a group of the audit's grouping; None: a measure over all classes.
    """

    measure: str
    attack: str
    comparison: str
    limit: float
    group: str | None = None

    @staticmethod
    def parse(text: str) -> Threshold:
        """Parse a condition such as ``worst(all) < 0.2``; the limit may also be ``20 %`` or ``1/5``.

        A name that is not a measure is that of a class: ``truck(all) < 0.1``. In quotation marks it is always one:
        ``'worst'(all) < 0.1``. `check_group` checks that there is such a class.

        Raises:
            ClasswiseError: for another form, an unknown measure, or a limit outside [0, 1], which would be met always
                or never.
        """
        parts = Condition.parse(text)
        if parts.quoted or parts.name not in _NAMES:
            if parts.part and parts.part not in ENDS:
                raise unknown(f"end of the interval in condition {text!r}:", parts.part, ENDS)
            measure = f"{ACCURACY}.{parts.part}".removesuffix(".")
            return Threshold(measure, parts.attack, parts.comparison, parts.limit, parts.name)
        measure = f"{parts.name}.{parts.part}".removesuffix(".")
        if measure not in MEASURES:
            raise unknown(f"measure in condition {text!r}:", measure, MEASURES)
        return Threshold(measure, parts.attack, parts.comparison, parts.limit)

    def __str__(self) -> str:
        """The condition in the form that `parse` accepts."""
        name, _, part = self.measure.partition(".")
        group = self.group
        quoted = group is not None and (group in _NAMES or group[:1] in {"'", '"'} or group != group.strip())
        return condition_text(name if group is None else group, quoted, self.attack, part, self.comparison, self.limit)

    def check_group(self, names: Sequence[str]) -> None:
        """Check that the class of the condition exists.

        Args:
            names: names of the classes, or of the groups.

        Raises:
            ClasswiseError: if there is no such class.
        """
        if self.group is not None and self.group not in names:
            raise unknown(f"measure or class in condition {str(self)!r}:", self.group, [*MEASURES, *names])

    def bounds(self, audit: Audit) -> Bounds:
        """Lower and upper bound of the measure; they are equal for a complete audit.

        For an incomplete audit they hold for all possible verdicts on the images not judged; NaN if there is no bound.

        Raises:
            IncompleteError: if the attack, or every attack, is not applicable to the model.
            ClasswiseError: if the audit has no such attack or class, or the measure is undefined.
        """
        meta = audit.outcomes.meta
        self.check_group(audit.group_names)
        if self.attack in meta.not_applicable:
            raise IncompleteError(f"condition {str(self)!r}: {self.attack!r} is not applicable to the model")
        if self.attack != CLEAN and meta.not_applicable and not meta.robustness_evaluated:
            names = ", ".join(meta.not_applicable)
            raise IncompleteError(
                f"condition {str(self)!r}: no robustness was evaluated; not applicable to the model: {names}"
            )
        if self.attack not in audit.names:
            raise unknown(f"attack in condition {str(self)!r}:", self.attack, audit.names)
        counts = audit.bounds(self.attack)
        clean = audit.bounds(CLEAN) if CLEAN in audit.names else None
        if self.group is None:
            bounds = MEASURES[self.measure](counts, clean, audit.alpha)
        else:
            bounds = _class_bounds(self.measure, counts, audit.group_names.index(self.group), audit.alpha)
        if math.isnan(bounds.low) and (counts.complete or clean is None):
            raise ClasswiseError(f"condition {str(self)!r}: {self.measure} is not defined for this audit")
        return bounds

    def value(self, audit: Audit) -> float:
        """The value of the measure.

        Raises:
            IncompleteError: if it depends on images that are not judged.
            ClasswiseError: see `bounds`.
        """
        low, high = self.bounds(audit)
        if low != high:
            raise self._undecided(audit)
        return low

    def decide(self, audit: Audit) -> bool | None:
        """Whether the condition is met; None if that depends on images that are not judged.

        Raises:
            ClasswiseError: see `bounds`.
        """
        low, high = self.bounds(audit)
        compare = COMPARISONS[self.comparison]
        decided = not math.isnan(low) and compare(low, self.limit) == compare(high, self.limit)
        return compare(low, self.limit) if decided else None

    def holds(self, audit: Audit) -> bool:
        """Whether the condition is met, so that the build fails.

        Raises:
            IncompleteError: if that depends on images that are not judged.
            ClasswiseError: see `bounds`.
        """
        decided = self.decide(audit)
        if decided is None:
            raise self._undecided(audit)
        return decided

    def _undecided(self, audit: Audit) -> IncompleteError:
        return IncompleteError(
            f"condition {str(self)!r} is undecided: {audit.outcomes.gap}; {audit.outcomes.completion}"
        )


def met(audit: Audit, thresholds: Iterable[Threshold | str]) -> dict[Threshold, Bounds]:
    """The conditions that are met, each with the bounds of its measure (equal for a complete audit).

    Raises:
        IncompleteError: if a condition depends on images that are not judged.
        ClasswiseError: see `Threshold.parse` and `Threshold.bounds`.
    """
    parsed = [Threshold.parse(each) if isinstance(each, str) else each for each in thresholds]
    return {threshold: threshold.bounds(audit) for threshold in parsed if threshold.holds(audit)}


def _class_bounds(measure: str, counts: BoundedCounts, label: int, alpha: float) -> Bounds:
    """Bounds of the accuracy of a class, or of an end of its interval, over all completions of the counts."""
    _, _, part = measure.partition(".")
    if not part:
        low, high = counts.accuracy
        return Bounds(float(low[label]), float(high[label]))
    if counts.unplaced:
        return Bounds(0.0, 1.0)
    count, first = int(counts.count[label]), int(counts.correct[label])
    if not count:
        return Bounds(math.nan, math.nan)
    possible = np.arange(first, first + count - int(counts.judged[label]) + 1)
    ends = class_intervals(ClassCounts(np.full(len(possible), count), possible), alpha)[ENDS.index(part)]
    return Bounds(float(ends.min()), float(ends.max()))
