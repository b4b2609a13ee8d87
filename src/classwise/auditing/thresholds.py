"""Thresholds that fail a build, such as ``worst(all).low < 0.2``, parsed before any evaluation."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from classwise.auditing.outcomes import CLEAN
from classwise.auditing.result import Audit
from classwise.core.config import number
from classwise.core.errors import ClasswiseError, IncompleteError, unknown
from classwise.stats.bounds import MEASURES, Bounds

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM = re.compile(
    r"\s*(?P<measure>[a-z0-9]+)\s*\((?P<attack>[^()]*)\)\s*(?:\.\s*(?P<part>[a-z]+))?"
    r"\s*(?P<comparison><=|>=|<|>)\s*(?P<limit>[^<>=]+?)\s*"
)


@dataclass(frozen=True)
class Threshold:
    """A condition that compares a measure of an audit with a limit.

    Attributes:
        measure: a key of `classwise.stats.bounds.MEASURES`.
        attack: one of `Audit.names`.
        comparison: ``<``, ``<=``, ``>`` or ``>=``.
        limit: the number on the right, a fraction.
    """

    measure: str
    attack: str
    comparison: str
    limit: float

    @staticmethod
    def parse(text: str) -> Threshold:
        """Parse a condition such as ``worst(all) < 0.2``; the limit may also be ``20 %`` or ``1/5``.

        Raises:
            ClasswiseError: for another form, an unknown measure, or a limit outside [0, 1], which would be met always
                or never.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise ClasswiseError(f"condition {text!r}: must have the form worst(all) < 0.2")
        measure = ".".join(filter(None, (match["measure"], match["part"])))
        if measure not in MEASURES:
            raise unknown(f"measure in condition {text!r}:", measure, MEASURES)
        percent = match["limit"].endswith("%")
        limit = number(match["limit"].rstrip("%").rstrip())
        if not isinstance(limit, float) or not math.isfinite(limit):
            raise ClasswiseError(
                f"condition {text!r}: limit {match['limit']!r} must be a number such as 0.2, 20% or 1/5"
            )
        limit = limit / 100 if percent else limit
        if not 0 <= limit <= 1:
            hint = "0.2 or 20% for 20 %" + ("; a cv of 900 in the tables is 0.09" if measure == "cv" else "")
            raise ClasswiseError(f"condition {text!r}: limit {match['limit']} must be between 0 and 1; write {hint}")
        return Threshold(measure, match["attack"].strip(), match["comparison"], limit)

    def __str__(self) -> str:
        """The condition in the form that `parse` accepts."""
        name, dot, part = self.measure.partition(".")
        return f"{name}({self.attack}){dot}{part} {self.comparison} {self.limit!r}"

    def bounds(self, audit: Audit) -> Bounds:
        """Lower and upper bound of the measure; they are equal for a complete audit.

        For an incomplete audit they hold for all possible verdicts on the images not judged; NaN if there is no bound.

        Raises:
            IncompleteError: if the attack, or every attack, is not applicable to the model.
            ClasswiseError: if the audit has no such attack, or the measure is undefined.
        """
        meta = audit.outcomes.meta
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
        bounds = MEASURES[self.measure](counts, clean, audit.alpha)
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
        compare = _COMPARISONS[self.comparison]
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
