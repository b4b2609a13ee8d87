"""Conditions that fail a build, such as ``worst(all).low < 0.2``: a small grammar, read before any work."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from classwise.auditing.outcomes import CLEAN
from classwise.auditing.result import Audit
from classwise.errors import IncompleteError, UserError, unknown
from classwise.settings import number

Measure = Callable[[Audit, str], float]


def _column(name: str) -> Measure:
    def measure(audit: Audit, attack: str) -> float:
        return float(audit.summary[name][attack])

    return measure


MEASURES: Mapping[str, Measure] = {
    **{name: _column(name) for name in ("overall", "macro", "worst", "worst20", "cv", "mcd", "nrr", "hmw")},
    "overall.low": _column("low"),
    "overall.high": _column("high"),
    "worst.low": lambda audit, attack: audit.worst(attack).minimum.low,
    "worst.high": lambda audit, attack: audit.worst(attack).minimum.high,
    "worst.split": lambda audit, attack: audit.worst(attack).minimum.split,
}
"""What a condition may speak of: columns of `Audit.summary` (fractions; ``cv`` in fractions squared), and the ends of
95 % intervals. Those of ``worst`` are of the minimum over the classes, whichever class it is."""

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
class Condition:
    """A comparison of a measured number with a limit.

    Attributes:
        measure: a key of `MEASURES`.
        attack: one of `Audit.names`.
        comparison: ``<``, ``<=``, ``>`` or ``>=``.
        limit: the number on the right.
    """

    measure: str
    attack: str
    comparison: str
    limit: float

    @staticmethod
    def parse(text: str) -> Condition:
        """Read a condition such as ``worst(all) < 0.2``; the limit may also be ``20 %`` or ``1/5``.

        Raises:
            UserError: if it is not of that form, speaks of something that is not measured, or has a limit that is no
                fraction, which would make it hold always or never.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise UserError(f"condition {text!r} is not of the form worst(all) < 0.2")
        measure = ".".join(filter(None, (found["measure"], found["part"])))
        if measure not in MEASURES:
            raise unknown(f"measure in condition {text!r}:", measure, MEASURES)
        percent = found["limit"].endswith("%")
        limit = number(found["limit"].rstrip("%").rstrip())
        if not isinstance(limit, float) or not math.isfinite(limit):
            raise UserError(f"condition {text!r}: {found['limit']!r} is not a number; write 0.2, 20% or 1/5")
        limit = limit / 100 if percent else limit
        if not 0 <= limit <= 1:
            squared = "; a cv of 900 in the tables is 0.09" if measure == "cv" else ""
            given = found["limit"]
            raise UserError(f"condition {text!r}: {given} is not between 0 and 1; write 0.2 or 20% for 20 %{squared}")
        return Condition(measure, found["attack"].strip(), found["comparison"], limit)

    def __str__(self) -> str:
        """The condition as `parse` reads it."""
        name, dot, part = self.measure.partition(".")
        return f"{name}({self.attack}){dot}{part} {self.comparison} {self.limit!r}"

    def value(self, audit: Audit) -> float:
        """The measured number.

        Raises:
            UserError: if the audit has no such attack, or the number does not exist.
            IncompleteError: if the attack, or every attack, is not applicable to the model.
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
        value = MEASURES[self.measure](audit, self.attack)
        if math.isnan(value):
            raise UserError(f"condition {str(self)!r}: {self.measure} is not defined for this audit")
        return value

    def holds(self, audit: Audit) -> bool:
        """Whether the audit meets the condition (so that a build that it should fail does fail)."""
        return _COMPARISONS[self.comparison](self.value(audit), self.limit)


def met(audit: Audit, conditions: Iterable[Condition | str]) -> dict[Condition, float]:
    """The conditions that hold, each with the measured number.

    Raises:
        UserError: as `Condition.parse` and `Condition.value` do.
    """
    read = [Condition.parse(each) if isinstance(each, str) else each for each in conditions]
    return {condition: condition.value(audit) for condition in read if condition.holds(audit)}
