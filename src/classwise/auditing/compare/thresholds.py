"""Thresholds that fail a build, on an audit (``worst(all).low < 0.2``) or on its change (``worst(all) < -0.02``).

Limits are rational numbers. Measures that are rational (`classwise.stats.registry.Metric.rational`,
and the accuracy of a class), their means over seeds and their changes are compared exactly; the ends of intervals and
``worst.split`` with the tolerance `classwise.stats.rational.TOLERANCE`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError, unknown
from classwise.stats import Unit
from classwise.stats.bounds import BoundedCounts, Bounds, accuracy_of
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.rational import as_rational, difference, parse_rational, rational_text
from classwise.stats.registry import Metric, all_metrics

if TYPE_CHECKING:
    from classwise.auditing.compare.comparison import Comparison

ACCURACY = "accuracy"
"""The measure of a single class."""
ENDS = ("low", "high")
"""The ends of an interval."""
CHANGE_WITH_INTERVAL = ("overall", "worst")
"""Measures whose change has an interval."""
UNITS: Mapping[Unit, tuple[int, str]] = {
    "fraction": (100, " %"),
    "fraction squared": (10_000, " percent squared"),
    "number": (1, ""),
}
"""Of each unit: the number of printed units in 1, and their name."""
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM = re.compile(
    r"\s*(?P<name>\S.*?)\s*\((?P<attack>[^()]*)\)\s*(?:\.\s*(?P<part>[a-z]+))?"
    r"\s*(?P<comparison><=|>=|<|>)\s*(?P<limit>[^<>=]+?)\s*"
)


@dataclass(frozen=True)
class Condition:
    """A comparison of a measure, or of the accuracy of one class, with a limit.

    Attributes:
        measure: a measure over all classes; of a class ``accuracy``, ``accuracy.low`` or ``accuracy.high``, the ends
            of its interval.
        attack: the attack, a key of the audit's table.
        comparison: a key of `COMPARISONS`.
        limit: the number on the right; a float is converted by `classwise.stats.rational.as_rational`.
        group: name of the class, or of a group of the audit's grouping; None: a measure over all classes.
    """

    measure: str
    attack: str
    comparison: str
    limit: Fraction
    group: str | None = None

    lowest: ClassVar[int]
    """The smallest limit; the largest is 1."""
    unit: ClassVar[str] = " %"
    """The unit of hundredths of a fraction."""
    sign: ClassVar[str] = ""
    """``+`` to show the sign of positive values."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", as_rational(self.limit))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a condition such as ``worst(all) < 0.2``; the limit may also be ``20 %``, ``1/5`` or ``2e-1``.

        A name that is not a measure is that of a class: ``truck(all) < 0.1``. In quotation marks it is always one:
        ``'worst'(all) < 0.1``. `check_group` checks that there is such a class.

        Raises:
            ClasswiseError: for another form, an unknown measure, or a limit outside [lowest, 1], which would be met
                always or never.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise ClasswiseError(f"condition {text!r}: must have the form worst(all) < 0.2")
        name, part = match["name"], match["part"] or ""
        quoted = len(name) > 2 and name[0] == name[-1] and name[0] in "'\""
        limit = cls._limit(text, match["limit"], name)
        group = None if not quoted and name in cls._names() else name[1:-1] if quoted else name
        if group is not None and part and part not in ENDS:
            raise unknown(f"end of the interval in condition {text!r}:", part, ENDS)
        measure = f"{name if group is None else ACCURACY}.{part}".removesuffix(".")
        if group is None and measure not in cls.measures():
            raise unknown(f"measure in condition {text!r}:", measure, cls.measures())
        return cls(measure, match["attack"].strip(), match["comparison"], limit, group)

    def __str__(self) -> str:
        """The condition in the form that `parse` accepts."""
        name, _, part = self.measure.partition(".")
        if self.group is not None:
            name = self.group
            if name in self._names() or name[:1] in {"'", '"'} or name != name.strip():
                mark = '"' if "'" in name else "'"
                name = f"{mark}{name}{mark}"
        return f"{name}({self.attack}){'.' if part else ''}{part} {self.comparison} {rational_text(self.limit)}"

    def check_group(self, names: Sequence[str]) -> None:
        """Check that the class of the condition exists.

        Args:
            names: names of the classes, or of the groups.

        Raises:
            ClasswiseError: if there is no such class.
        """
        if self.group is not None and self.group not in names:
            raise unknown(f"measure or class in condition {str(self)!r}:", self.group, [*self.measures(), *names])

    def met_by(self, value: Fraction | float) -> bool:
        """Whether a value meets the condition, so that the build fails: a fraction exactly, a float with tolerance."""
        return COMPARISONS[self.comparison](difference(value, self.limit), 0)

    @property
    def shown_limit(self) -> str:
        """The limit in the unit of the measure, exact if that is short."""
        factor, unit = self._unit
        text = rational_text(self.limit * factor)
        return f"{float(self.limit * factor):g}{unit}" if "/" in text else f"{text}{unit}"

    def shown(self, value: Fraction | float) -> str:
        """The value in the unit of the measure, with one decimal, or as many as show its side of the limit."""
        factor, unit = self._unit
        excess = difference(value, self.limit)
        texts = [f"{float(value) * factor:{self.sign}.{digits}f}" for digits in range(1, 17)]
        sided = (text for text in texts if excess and (Fraction(text) / factor - self.limit) * excess > 0)
        return next(sided, texts[0]) + unit

    @property
    def _unit(self) -> tuple[int, str]:
        """The number of printed units in 1, and their name."""
        unit = "fraction" if self.metric is None else self.metric.unit
        return (100, self.unit) if unit == "fraction" else UNITS[unit]

    @property
    def metric(self) -> Metric | None:
        """The metric of a measure over all classes; None for the accuracy of one class."""
        return None if self.group is not None else all_metrics()[self.measure.partition(".")[0]]

    @classmethod
    def measures(cls) -> list[str]:
        """The measures over all classes: the metrics, then the ends of their intervals."""
        known = all_metrics()
        return [*known, *(f"{name}.{end}" for name, metric in known.items() for end in metric.ends)]

    @classmethod
    def _names(cls) -> set[str]:
        return {measure.partition(".")[0] for measure in cls.measures()}

    @classmethod
    def _limit(cls, text: str, written: str, name: str) -> Fraction:
        limit = parse_rational(written)
        if limit is None:
            raise ClasswiseError(f"condition {text!r}: limit {written!r} must be a number such as 0.2, 20% or 1/5")
        metric = all_metrics().get(name)
        if not cls.lowest <= limit <= 1 and (metric is None or metric.unit != "number"):
            squared = metric is not None and metric.unit == "fraction squared"
            hint = "0.2 or 20% for 20 %" + (f"; a {name} of 900 in the tables is 0.09" if squared else "")
            raise ClasswiseError(
                f"condition {text!r}: limit {written} must be between {cls.lowest} and 1; write {hint}"
            )
        return limit


@dataclass(frozen=True)
class Threshold(Condition):
    """A condition on a metric of an audit (`classwise.stats.METRICS`), or an end of its interval."""

    lowest: ClassVar[int] = 0

    def bounds(self, audit: Audit) -> Bounds[float]:
        """Lower and upper bound of the measure; they are equal for a complete audit.

        For an incomplete audit they hold for all possible verdicts on the images not judged; NaN if there is no bound.

        Raises:
            IncompleteError: if the attack, or every attack, is not applicable to the model.
            ClasswiseError: if the audit has no such attack or class, or the measure is undefined.
        """
        low, high = self._bounds(audit)
        return Bounds(float(low), float(high))

    def _bounds(self, audit: Audit) -> Bounds[Fraction] | Bounds[float]:
        """`bounds`, exact for a rational measure."""
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
        inputs, (_, _, end) = audit.inputs(self.attack), self.measure.partition(".")
        bounds: Bounds[Fraction] | Bounds[float]
        if self.metric is None:
            label = audit.group_names.index(str(self.group))
            bounds = _class_bounds(self.measure, inputs.counts, label, audit.alpha)
        else:
            bounds = self.metric.ends[end](inputs.counts, audit.alpha) if end else self.metric.possible(inputs)
        reads = "counts" if self.metric is None else self.metric.reads
        if math.isnan(bounds.low) and (inputs.lacks(reads) or inputs.arguments(reads) is not None):
            reason = f"{self.measure} is not defined for this audit" if self.group is None else "0 images of this class"
            raise ClasswiseError(f"condition {str(self)!r}: {reason}")
        return bounds

    def value(self, audit: Audit) -> float:
        """The value of the measure.

        Raises:
            IncompleteError: if it depends on images that are not judged.
            ClasswiseError: see `bounds`.
        """
        low, high = self._bounds(audit)
        if low != high:
            raise self._undecided(audit)
        return float(low)

    def decide(self, audit: Audit) -> bool | None:
        """Whether the condition is met; None if that depends on images that are not judged.

        Raises:
            ClasswiseError: see `bounds`.
        """
        low, high = self._bounds(audit)
        decided = not math.isnan(low) and self.met_by(low) == self.met_by(high)
        return self.met_by(low) if decided else None

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


@dataclass(frozen=True)
class ChangeThreshold(Condition):
    """A condition on a measure of a method minus that of the first method of a comparison, in [-1, 1]."""

    lowest: ClassVar[int] = -1
    unit: ClassVar[str] = " points"
    sign: ClassVar[str] = "+"

    @classmethod
    def measures(cls) -> list[str]:
        """The metrics, and the ends of the intervals of the changes that have one."""
        return [*all_metrics(), *(f"{name}.{end}" for name in CHANGE_WITH_INTERVAL for end in ENDS)]

    def value(self, comparison: Comparison, method: str) -> float:
        """The change of the measure: the method minus the first method.

        Raises:
            IncompleteError: if an audit is incomplete.
            ClasswiseError: for an unknown method, another attack than that of the comparison, an unknown class, or an
                undefined measure.
        """
        return float(self._value(comparison, method))

    def holds(self, comparison: Comparison, method: str) -> bool:
        """Whether the condition is met by a method, so that the build fails. Raises as `value`."""
        return self.met_by(self._value(comparison, method))

    def _value(self, comparison: Comparison, method: str) -> Fraction | float:
        """`value`, exact for a rational measure."""
        if method not in comparison.audits:
            raise unknown("method", method, comparison.audits)
        if self.attack != comparison.attack:
            raise ClasswiseError(
                f"condition {str(self)!r}: the comparison is under {comparison.attack!r}; compare under "
                f"{self.attack!r} (--attack {self.attack})"
            )
        self.check_group(comparison.group_names)
        _, _, end = self.measure.partition(".")
        first = comparison.names[0]
        value = (
            self._end(comparison, method, end)
            if end
            else self._mean(comparison, method) - self._mean(comparison, first)
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


def met(audit: Audit, thresholds: Iterable[Threshold | str]) -> dict[Threshold, Bounds[float]]:
    """The conditions that are met, each with the bounds of its measure (equal for a complete audit).

    Raises:
        IncompleteError: if a condition depends on images that are not judged.
        ClasswiseError: see `Threshold.parse` and `Threshold.bounds`.
    """
    parsed = [Threshold.parse(threshold) if isinstance(threshold, str) else threshold for threshold in thresholds]
    return {threshold: threshold.bounds(audit) for threshold in parsed if threshold.holds(audit)}


def _class_bounds(measure: str, counts: BoundedCounts, label: int, alpha: float) -> Bounds[Fraction] | Bounds[float]:
    """Bounds of the accuracy of a class, or of an end of its interval, over all completions of the counts."""
    _, _, part = measure.partition(".")
    if not part:
        return accuracy_of(counts, label)
    if counts.unplaced:
        return Bounds(0.0, 1.0)
    count, first = int(counts.count[label]), int(counts.correct[label])
    if not count:
        return Bounds(math.nan, math.nan)
    possible = np.arange(first, first + count - int(counts.judged[label]) + 1)
    ends = class_intervals(ClassCounts(np.full(len(possible), count), possible), alpha)[ENDS.index(part)]
    return Bounds(float(ends.min()), float(ends.max()))
