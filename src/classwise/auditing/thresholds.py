"""Conditions that fail a build, such as ``worst(all).low < 0.2``: a small grammar, read before any work."""

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
    """A comparison of a measured number with a limit.

    Attributes:
        measure: a key of `classwise.stats.bounds.MEASURES`.
        attack: one of `Audit.names`.
        comparison: ``<``, ``<=``, ``>`` or ``>=``.
        limit: the number on the right.
    """

    measure: str
    attack: str
    comparison: str
    limit: float

    @staticmethod
    def parse(text: str) -> Threshold:
        """Read a condition such as ``worst(all) < 0.2``; the limit may also be ``20 %`` or ``1/5``.

        Raises:
            ClasswiseError: if it is not of that form, speaks of something that is not measured, or has a limit that is
                no fraction, which would make it hold always or never.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise ClasswiseError(f"condition {text!r} is not of the form worst(all) < 0.2")
        measure = ".".join(filter(None, (found["measure"], found["part"])))
        if measure not in MEASURES:
            raise unknown(f"measure in condition {text!r}:", measure, MEASURES)
        percent = found["limit"].endswith("%")
        limit = number(found["limit"].rstrip("%").rstrip())
        if not isinstance(limit, float) or not math.isfinite(limit):
            raise ClasswiseError(f"condition {text!r}: {found['limit']!r} is not a number; write 0.2, 20% or 1/5")
        limit = limit / 100 if percent else limit
        if not 0 <= limit <= 1:
            squared = "; a cv of 900 in the tables is 0.09" if measure == "cv" else ""
            given = found["limit"]
            raise ClasswiseError(
                f"condition {text!r}: {given} is not between 0 and 1; write 0.2 or 20% for 20 %{squared}"
            )
        return Threshold(measure, found["attack"].strip(), found["comparison"], limit)

    def __str__(self) -> str:
        """The condition as `parse` reads it."""
        name, dot, part = self.measure.partition(".")
        return f"{name}({self.attack}){dot}{part} {self.comparison} {self.limit!r}"

    def bounds(self, audit: Audit) -> Bounds:
        """The measured number as a lower and an upper bound, which are equal where no image is left to judge.

        Of an incomplete audit they hold however the remaining images turn out; NaN where no bound is known.

        Raises:
            IncompleteError: if the attack, or every attack, is not applicable to the model.
            ClasswiseError: if the audit has no such attack, or the number does not exist.
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
        found = MEASURES[self.measure](counts, clean, audit.alpha)
        if math.isnan(found.low) and (counts.complete or clean is None):
            raise ClasswiseError(f"condition {str(self)!r}: {self.measure} is not defined for this audit")
        return found

    def value(self, audit: Audit) -> float:
        """The measured number.

        Raises:
            IncompleteError: if it depends on images that are not judged.
            ClasswiseError: as `bounds` does.
        """
        low, high = self.bounds(audit)
        if low != high:
            raise self._undecided(audit)
        return low

    def decide(self, audit: Audit) -> bool | None:
        """Whether the condition holds; None where that depends on images that are not judged.

        Raises:
            ClasswiseError: as `bounds` does.
        """
        low, high = self.bounds(audit)
        compare = _COMPARISONS[self.comparison]
        decided = not math.isnan(low) and compare(low, self.limit) == compare(high, self.limit)
        return compare(low, self.limit) if decided else None

    def holds(self, audit: Audit) -> bool:
        """Whether the audit meets the condition (so that a build that it should fail does fail).

        Raises:
            IncompleteError: if that depends on images that are not judged.
            ClasswiseError: as `bounds` does.
        """
        decided = self.decide(audit)
        if decided is None:
            raise self._undecided(audit)
        return decided

    def _undecided(self, audit: Audit) -> IncompleteError:
        return IncompleteError(f"condition {str(self)!r} is undecided: {audit.outcomes.gap}; continue it with --resume")


def met(audit: Audit, thresholds: Iterable[Threshold | str]) -> dict[Threshold, Bounds]:
    """The conditions that hold, each with the bounds of its number (equal for a complete audit).

    Raises:
        IncompleteError: if whether a condition holds depends on images that are not judged.
        ClasswiseError: as `Threshold.parse` and `Threshold.bounds` do.
    """
    read = [Threshold.parse(each) if isinstance(each, str) else each for each in thresholds]
    return {threshold: threshold.bounds(audit) for threshold in read if threshold.holds(audit)}
