"""Thresholds on an audit that fail a build (``worst(all).low < 0.2``).

Limits are rational numbers. Measures that are rational (`classwise.stats.registry.Metric.rational`,
and the accuracy of a class), their means over seeds and their changes are compared exactly; the ends of intervals and
``worst.split`` with the tolerance `classwise.stats.rational.TOLERANCE`.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError, IncompleteError, unknown
from classwise.stats import Unit
from classwise.stats.bounds import BoundedCounts, Bounds, accuracy_of
from classwise.stats.counts import ClassCounts, IntArray
from classwise.stats.intervals import class_intervals, clopper_pearson, proportion_interval
from classwise.stats.rational import as_rational, difference, parse_rational, rational_text
from classwise.stats.registry import Metric, MetricInputs, all_metrics

ACCURACY = "accuracy"
"""The measure of a single class."""
REQUIRES = "requires "
"""What the text of a requirement begins with."""
ENDS = ("low", "high")
MOST_IMAGES = 1_000_000
"""Largest number of images that is named."""
"""The ends of an interval."""
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
NEGATED: Mapping[str, str] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
"""The comparison that is true exactly where the key is false."""
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

    @classmethod
    def requirement(cls, text: str) -> Self:
        """Parse what a build requires, such as ``worst(all).low >= 0.2``: the condition that it is not so.

        Raises:
            ClasswiseError: see `parse`.
        """
        condition = cls.parse(text)
        return dataclasses.replace(condition, comparison=NEGATED[condition.comparison])

    @classmethod
    def parse_all(cls, fail_if: Iterable[str] | None, require: Iterable[str] | None) -> dict[str, Self]:
        """The conditions that fail a build by their text, which is ``requires ...`` for a requirement.

        Raises:
            ClasswiseError: see `parse`.
        """
        conditions = {text: cls.parse(text) for text in fail_if or ()}
        return conditions | {f"{REQUIRES}{text}": cls.requirement(text) for text in require or ()}

    def __str__(self) -> str:
        """The condition in the form that `parse` accepts."""
        name, _, part = self.measure.partition(".")
        if self.group is not None:
            name = self.group
            if name in self._names() or name[:1] in {"'", '"'} or name != name.strip():
                mark = '"' if "'" in name else "'"
                name = f"{mark}{name}{mark}"
        return f"{name}({self.attack}){'.' if part else ''}{part} {self.comparison} {rational_text(self.limit)}"

    def check_group(self, names: Sequence[str], count: IntArray | None = None) -> None:
        """Check that the class of the condition exists.

        Args:
            names: names of the classes, or of the groups.
            count: (C,) images of each, of which the class must have some; None: unknown.

        Raises:
            ClasswiseError: if there is no such class, or it has no images.
        """
        if self.group is not None and self.group not in names:
            raise unknown(f"measure or class in condition {str(self)!r}:", self.group, [*self.measures(), *names])
        if self.group is not None and count is not None and not count[names.index(self.group)]:
            raise ClasswiseError(f"condition {str(self)!r}: 0 images of this class")

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
    def is_fraction(self) -> bool:
        """Whether the measure is between 0 and 1."""
        return self.metric is None or self.metric.unit == "fraction"

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


class Judged(Protocol):
    """What a threshold reads of an audit (`classwise.Audit`)."""

    @property
    def outcomes(self) -> Outcomes:
        """A row for each image and attack."""

    @property
    def alpha(self) -> float:
        """1 minus the coverage of the intervals."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all verdicts."""

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the classes, or of the groups."""

    def inputs(self, name: str) -> MetricInputs:
        """What metrics under an attack are computed from."""


@dataclass(frozen=True)
class Threshold(Condition):
    """A condition on a metric of an audit (`classwise.stats.METRICS`), or an end of its interval."""

    lowest: ClassVar[int] = 0

    @property
    def needs_images(self) -> bool:
        """Whether more images can make the condition false: a low end that must be high, a high one that must be low.

        Only of an accuracy: of all images, of the worst class, or of one class.
        """
        measure, _, end = self.measure.partition(".")
        known = self.group is not None or measure in ("overall", "worst")
        return known and (end, self.comparison[0]) in (("low", "<"), ("high", ">"))

    def best_end(self, count: IntArray, names: Sequence[str], alpha: float = 0.05) -> float:
        """The end of the interval if every image is correct; an upper end if none is.

        Args:
            count: (C,) images of each class or group.
            names: their names.
            alpha: 1 minus the coverage of the interval.
        """
        _, _, end = self.measure.partition(".")
        counts = ClassCounts(count, count if end == "low" else np.zeros_like(count))
        if self.metric is not None:
            return float(self.metric.ends[end](BoundedCounts.of(counts), alpha).low)
        return float(class_intervals(counts, alpha)[ENDS.index(end)][[*names].index(str(self.group))])

    def least_images(self, count: IntArray, names: Sequence[str], alpha: float = 0.05) -> tuple[int, int] | None:
        """The images that a condition on an end of an interval counts, and the fewest with which it can be false.

        The images are those of the class, of the smallest class with images, or all of them.

        Args:
            count: (C,) images of each class or group.
            names: their names.
            alpha: 1 minus the coverage of the interval.

        Returns:
            None if it can be false with these images, or with no number up to `MOST_IMAGES`.
        """
        if not self.met_by(self.best_end(count, names, alpha)):
            return None
        present, overall = count[count > 0], self.group is None and self.measure.startswith("overall")
        if self.group is None:
            images = int(present.sum() if overall else present.min())
        else:
            images = int(count[[*names].index(self.group)])
        low, least = images, images * 2
        shape, alone = np.ones_like(present[:1] if overall or self.group is not None else present), [str(self.group)]
        while self.met_by(self.best_end(shape * least, alone, alpha)):
            low, least = least, least * 2
            if least > MOST_IMAGES:
                return None
        while least - low > 1:
            middle = (low + least) // 2
            low, least = (middle, least) if self.met_by(self.best_end(shape * middle, alone, alpha)) else (low, middle)
        return images, least

    def bounds(self, audit: Judged) -> Bounds[float]:
        """Lower and upper bound of the measure; they are equal for a complete audit.

        For an incomplete audit they hold for all possible verdicts on the images not judged; NaN if there is no bound.

        Raises:
            IncompleteError: if the attack is not applicable to the model.
            ClasswiseError: if the audit has no such attack or class, or the measure is undefined.
        """
        low, high = self._bounds(audit)
        return Bounds(float(low), float(high))

    def _bounds(self, audit: Judged) -> Bounds[Fraction] | Bounds[float]:
        """`bounds`, exact for a rational measure."""
        meta = audit.outcomes.meta
        self.check_group(audit.group_names)
        if self.attack in meta.not_applicable:
            raise IncompleteError(f"condition {str(self)!r}: {self.attack!r} is not applicable to the model")
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

    def parts(self, audit: Judged) -> dict[str, Self]:
        """The conditions on each class with images that together are this one, by name; else this one by its measure.

        A lower limit on the worst class, or on the lower end of its interval, is one on every class.

        Raises:
            ClasswiseError: if the audit has no such attack.
        """
        name, _, end = self.measure.partition(".")
        if self.group is not None or name != "worst" or end not in ("", "low") or self.comparison not in ("<", "<="):
            return {self.group or self.measure: self}
        present = audit.inputs(self.attack).counts.count > 0
        measure = self.measure if end else ACCURACY
        return {
            group: dataclasses.replace(self, measure=measure, group=group)
            for group, some in zip(audit.group_names, present, strict=True)
            if some
        }

    def value(self, audit: Judged) -> float:
        """The value of the measure.

        Raises:
            IncompleteError: if it depends on images that are not judged.
            ClasswiseError: see `bounds`.
        """
        low, high = self._bounds(audit)
        if low != high:
            raise self._undecided(audit)
        return float(low)

    def decide(self, audit: Judged) -> bool | None:
        """Whether the condition is met; None if that depends on images that are not judged.

        Raises:
            ClasswiseError: see `bounds`.
        """
        low, high = self._bounds(audit)
        decided = not math.isnan(low) and self.met_by(low) == self.met_by(high)
        return self.met_by(low) if decided else None

    def holds(self, audit: Judged) -> bool:
        """Whether the condition is met, so that the build fails.

        Raises:
            IncompleteError: if that depends on images that are not judged.
            ClasswiseError: see `bounds`.
        """
        decided = self.decide(audit)
        if decided is None:
            raise self._undecided(audit)
        return decided

    def _undecided(self, audit: Judged) -> IncompleteError:
        return IncompleteError(
            f"condition {str(self)!r} is undecided: {audit.outcomes.gap}; {audit.outcomes.completion}"
        )


def met(audit: Judged, thresholds: Iterable[Threshold | str]) -> dict[Threshold, Bounds[float]]:
    """The conditions that are met, each with the bounds of its measure (equal for a complete audit).

    Raises:
        IncompleteError: if a condition depends on images that are not judged.
        ClasswiseError: see `Threshold.parse` and `Threshold.bounds`.
    """
    parsed = [Threshold.parse(threshold) if isinstance(threshold, str) else threshold for threshold in thresholds]
    return {threshold: threshold.bounds(audit) for threshold in parsed if threshold.holds(audit)}


def _class_bounds(measure: str, counts: BoundedCounts, label: int, alpha: float) -> Bounds[Fraction] | Bounds[float]:
    """Bounds of the accuracy of a class, or of an end of its interval, over all completions of the counts.

    ``worst.low`` is what the class contributes to the lower end of the worst-class accuracy.
    """
    _, _, part = measure.partition(".")
    if not part:
        return accuracy_of(counts, label)
    if counts.unplaced:
        return Bounds(0.0, 1.0)
    count, first = int(counts.count[label]), int(counts.correct[label])
    if not count:
        return Bounds(math.nan, math.nan)
    possible = np.arange(first, first + count - int(counts.judged[label]) + 1)
    # The lowest of the exact lower ends of the classes is that of the worst class.
    interval = clopper_pearson if measure.startswith("worst") else proportion_interval
    ends = interval(possible, np.full(len(possible), count), alpha)[ENDS.index(part)]
    return Bounds(float(ends.min()), float(ends.max()))
