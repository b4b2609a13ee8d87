"""Thresholds on the change against a baseline, such as ``worst(all) < -0.02``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from classwise.auditing.comparison import Comparison
from classwise.auditing.conditions import COMPARISONS, Condition, condition_text
from classwise.core.errors import ClasswiseError, unknown
from classwise.stats.intervals import Estimate

ENDS = ("low", "high")
WITH_INTERVAL = ("overall", "worst")
"""Measures whose change has an interval."""
MEASURES = (*WITH_INTERVAL, "macro", "worst20", "cv", "mcd", "nrr", "hmw")
"""Measures of a comparison's table (fractions; ``cv`` in fractions squared)."""


@dataclass(frozen=True)
class ChangeThreshold:
    """A condition on a method's measure minus that of the first method of a comparison.

    Attributes:
        measure: one of `MEASURES`; None: the accuracy of the class ``group``.
        part: ``low`` or ``high``, an end of the interval of the change; empty: the change.
        attack: the attack of the comparison.
        comparison: ``<``, ``<=``, ``>`` or ``>=``.
        limit: the number on the right, a fraction in [-1, 1]; negative for a loss.
        group: name of a class, or of a group.
    """

    measure: str | None
    part: str
    attack: str
    comparison: str
    limit: float
    group: str | None = None

    @staticmethod
    def parse(text: str) -> ChangeThreshold:
        """Parse a condition such as ``worst(all) < -0.02``, ``overall(all).high < 0`` or ``truck(all) < -5%``.

        Raises:
            ClasswiseError: for another form, an unknown measure or end, or a limit outside [-1, 1].
        """
        parts = Condition.parse(text, lowest=-1.0)
        of_class = parts.quoted or parts.name not in MEASURES
        if parts.part and not of_class and parts.name not in WITH_INTERVAL:
            raise ClasswiseError(
                f"condition {text!r}: the change of {parts.name} has no interval; omit .{parts.part}, or use "
                f"{' or '.join(WITH_INTERVAL)}"
            )
        if parts.part and parts.part not in ENDS:
            raise unknown(f"end of the interval in condition {text!r}:", parts.part, ENDS)
        measure, group = (None, parts.name) if of_class else (parts.name, None)
        return ChangeThreshold(measure, parts.part, parts.attack, parts.comparison, parts.limit, group)

    def __str__(self) -> str:
        """The condition in the form that `parse` accepts."""
        name = self.measure or self.group or ""
        return condition_text(name, self.measure is None, self.attack, self.part, self.comparison, self.limit)

    def value(self, comparison: Comparison, method: str) -> float:
        """The change of the measure: the method minus the first method.

        Raises:
            IncompleteError: if an audit is incomplete.
            ClasswiseError: for another attack than that of the comparison, an unknown class, or an undefined measure.
        """
        if self.attack != comparison.attack:
            raise ClasswiseError(
                f"condition {str(self)!r}: the comparison is under {comparison.attack!r}; compare under "
                f"{self.attack!r} (--attack {self.attack})"
            )
        if self.group is not None and self.group not in comparison.group_names:
            known = [*MEASURES, *comparison.group_names]
            raise unknown(f"measure or class in condition {str(self)!r}:", self.group, known)
        value = self._change(comparison, method)
        if math.isnan(value):
            raise ClasswiseError(f"condition {str(self)!r}: the change is not defined for this comparison")
        return value

    def holds(self, comparison: Comparison, method: str) -> bool:
        """Whether the condition is met by a method, so that the build fails. Raises as `value`."""
        return COMPARISONS[self.comparison](self.value(comparison, method), self.limit)

    def _change(self, comparison: Comparison, method: str) -> float:
        baseline = comparison.names[0]
        if self.measure is not None and self.measure not in WITH_INTERVAL:
            column = comparison.table[self.measure]
            return float(column[method] - column[baseline])
        pair = comparison.pair(method, baseline)
        if self.measure is None:
            if self.group not in pair.classes.index:  # without images
                return math.nan
            changes: dict[Any, float] = pair.classes[self.part or "difference"].to_dict()
            return float(changes[self.group])
        estimate: Estimate = pair.overall if self.measure == "overall" else pair.minima
        return float(getattr(estimate, self.part or "value"))
