"""Thresholds on the change of a measure between two methods that fail a build (``worst(all) < -0.02``)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.criteria.thresholds import ACCURACY, ENDS, Condition
from classwise.core.errors import ClasswiseError, unknown
from classwise.stats.bounds import accuracy_of
from classwise.stats.intervals import Estimate
from classwise.stats.registry import Metric, all_metrics

CHANGE_WITH_INTERVAL = ("overall", "worst")
"""Metrics whose change has an interval."""
ANY = "any"
"""The change of some class."""


@dataclass(frozen=True)
class ChangeThreshold(Condition):
    """A condition on a measure of a method minus that of the first method of a comparison, in [-1, 1].

    ``any(all).high < 0`` is met if it is by a class: the intervals of the classes are simultaneous, so that none that
    did not change meets it by chance, with the confidence of the comparison. The attack may be another than that of the
    comparison, such as ``clean``.
    """

    lowest: ClassVar[int] = -1
    unit: ClassVar[str] = " points"
    sign: ClassVar[str] = "+"

    @classmethod
    def measures(cls) -> list[str]:
        """The metrics, and the ends of the intervals of the changes that have one."""
        ends = (f"{name}.{end}" for name in (*CHANGE_WITH_INTERVAL, ANY) for end in ENDS)
        return [*all_metrics(), ANY, *ends]

    @property
    def metric(self) -> Metric | None:
        """The metric of a measure over all classes; None for the accuracy of one class, or of any."""
        return None if self.measure.partition(".")[0] == ANY else super().metric

    def value(self, comparison: Comparison, method: str) -> float:
        """The change of the measure: the method minus the first method.

        Raises:
            IncompleteError: if an audit is incomplete.
            ClasswiseError: for an unknown method, attack or class, or an undefined measure.
        """
        return float(self._value(comparison, method))

    def holds(self, comparison: Comparison, method: str) -> bool:
        """Whether the condition is met by a method, so that the build fails. Raises as `value`."""
        return self.met_by(self._value(comparison, method))

    def _value(self, comparison: Comparison, method: str) -> Fraction | float:
        """`value`, exact for a rational measure."""
        if method not in comparison.audits:
            raise unknown("method", method, comparison.audits)
        try:
            comparison = comparison.under(self.attack)
        except ClasswiseError as error:
            raise type(error)(f"condition {str(self)!r}: {error}") from error
        self.check_group(comparison.group_names)
        decisive = self.of_deciding_class(comparison, method)
        if decisive is not self:
            return decisive._value(comparison, method)
        _, _, end = self.measure.partition(".")
        value = (
            self._end(comparison, method, end)
            if end
            else self._mean(comparison, method) - self._mean(comparison, comparison.names[0])
        )
        if math.isnan(value):
            reason = "the change is not defined for this comparison" if self.group is None else "0 images of this class"
            raise ClasswiseError(f"condition {str(self)!r}: {reason}")
        return value

    def _mean(self, comparison: Comparison, method: str) -> Fraction | float:
        """The mean of the measure over the runs of a method; NaN if it is undefined."""
        runs = comparison.inputs[method]
        values: list[Fraction | float]
        if self.metric is None:
            label = comparison.group_names.index(str(self.group))
            values = [accuracy_of(inputs.counts, label).low for inputs in runs]
        elif len(runs) > 1 and not self.metric.mean_over_seeds:
            return math.nan
        else:
            values = [self.metric.possible(inputs).low for inputs in runs]
        return sum(values) / len(values)

    def _end(self, comparison: Comparison, method: str, end: str) -> float:
        """An end of the interval of the change; NaN for a class without images."""
        pair = comparison.pair(method, comparison.names[0])
        if self.group is not None:
            changes: dict[Any, float] = pair.classes[end].to_dict()
            return float(changes.get(self.group, math.nan))
        estimate: Estimate = pair.overall if self.measure.startswith("overall") else pair.minima
        return float(getattr(estimate, end))

    def of_deciding_class(self, comparison: Comparison, method: str) -> Self:
        """For ``any``, the condition on the class whose change is nearest to meeting it; other conditions as they are.

        Args:
            comparison: under the attack of the condition.
            method: the method that is compared with the first.
        """
        name, _, end = self.measure.partition(".")
        if name != ANY or self.group is not None:
            return self
        changes = comparison.pair(method, comparison.names[0]).classes[end or "difference"]
        label = changes.idxmin() if self.comparison in ("<", "<=") else changes.idxmax()
        return dataclasses.replace(self, measure=f"{ACCURACY}.{end}".removesuffix("."), group=str(label))
