"""Metrics of an audit: decorated functions that declare what they read, and how they are shown and bounded.

Data frames and conditions have each metric of `METRICS`; tables and leaderboards have all but some of the library's
own. An installed package adds a metric through the entry-point group ``classwise.metrics``.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from classwise.core.errors import ClasswiseError, IncompleteError, one_line, unknown
from classwise.core.settings.arguments import checked
from classwise.core.settings.description import summary
from classwise.core.settings.registry import kind_text
from classwise.core.settings.signatures import check_call
from classwise.core.settings.user_code import call_user_code, original, user_code
from classwise.stats import METRICS, OWN_METRICS, Unit
from classwise.stats.bounds import UNKNOWN, BoundedCounts, Bounds
from classwise.stats.function_intervals import (
    interval_of_confusion,
    interval_of_counts,
    interval_of_outcomes,
    interval_of_pairs,
)
from classwise.stats.intervals import Estimate

T = TypeVar("T")

logger = logging.getLogger(__name__)

Reads = Literal["counts", "clean and counts", "confusion", "outcomes"]
"""What a metric is computed from."""
RESERVED = ("n", "judged", "low", "high", "clean", "attack", "method", "seeds", "teacher", "worst_class", "model")
"""Names of other columns."""
NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class MetricInputs:
    """What the metrics under one attack are computed from.

    Attributes:
        counts: counts of the C classes (or groups) under the attack.
        clean: counts without an attack; None if they are unknown.
        confusion: returns the confusion matrix under the attack; None if it is unknown.
        outcomes: returns a data frame with a row for each image: ``index``, ``label``, ``group`` (the label, or the
            group of a grouping), ``prediction`` (-1: none), ``correct``, and ``clean`` (correct without an attack).
            None if it is unknown.
    """

    counts: BoundedCounts
    clean: BoundedCounts | None = None
    confusion: Callable[[], Any] | None = None
    outcomes: Callable[[], Any] | None = None
    _estimates: dict[tuple[str, float], Estimate] = field(default_factory=dict, init=False, repr=False)
    _failures: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    @property
    def failures(self) -> Mapping[str, str]:
        """Why metrics have no value in tables, by their names: errors of those of the user."""
        return self._failures

    @property
    def complete(self) -> bool:
        """Whether every image is evaluated, under the attack and without it."""
        return self.counts.complete and (self.clean is None or self.clean.complete)

    def lacks(self, reads: Reads) -> bool:
        """Whether a metric can have no value, even if every image were evaluated."""
        needed = {"clean and counts": self.clean, "confusion": self.confusion, "outcomes": self.outcomes}
        return reads != "counts" and needed[reads] is None

    def arguments(self, reads: Reads) -> tuple[Any, ...] | None:
        """The arguments of a metric; None if they are unknown, or some images are not evaluated."""
        if not self.counts.complete:
            return None
        if reads == "counts":
            return (self.counts.low,)
        if reads == "clean and counts":
            return None if self.clean is None or not self.clean.complete else (self.clean.low, self.counts.low)
        source = self.confusion if reads == "confusion" else self.outcomes
        try:
            return None if source is None else (source(),)
        except IncompleteError:
            return None


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric of the outcomes under one attack; see `metric`, which makes it of a function.

    Attributes:
        name: its name in conditions, data frames and files.
        function: maps what the metric reads to its value.
        title: head of its column.
        about: its definition, without a full stop.
        reads: ``counts``: `ClassCounts` under the attack; ``clean and counts``: those without an attack, and those
            under it; ``confusion``: the (C, C) matrix of counts, truth by prediction; ``outcomes``: the data frame of
            `MetricInputs`.
        unit: ``fraction`` (printed in percent), ``fraction squared`` (percent squared) or ``number``.
        higher_is_better: the direction.
        rational: whether exact values are fractions of integers: those of ``bounds``, or of ``function`` without them.
        interval: maps the arguments of ``function`` and alpha to an `Estimate`; None: an interval of
            `classwise.stats.function_intervals`, with NaN ends where it is not valid: with fewer than 30 images in a
            class, or for a function with steps. Metrics of ``outcomes`` have a bootstrap interval.
        bounds: maps `BoundedCounts` (in the order of ``reads``) to `Bounds` that are valid for every completion; None:
            conditions on an incomplete audit are undecided.
        ends: bounds of the ends of the interval, by the part of a condition, from `BoundedCounts` and alpha.
        mean_over_seeds: whether a comparison averages it over training seeds; otherwise several seeds have no value.
    """

    name: str
    function: Callable[..., Any]
    title: str
    about: str
    reads: Reads = "counts"
    unit: Unit = "fraction"
    higher_is_better: bool = True
    rational: bool = False
    interval: Callable[..., Estimate] | None = None
    bounds: Callable[..., Bounds[Fraction] | Bounds[float]] | None = None
    ends: Mapping[str, Callable[[BoundedCounts, float], Bounds[float]]] = field(default_factory=dict)
    mean_over_seeds: bool = True

    def __post_init__(self) -> None:
        where = f"metric {self.name!r}"
        if not self.name.isidentifier() or self.name in RESERVED:
            raise ClasswiseError(f"{where}: the name must be letters, digits and _, and not {', '.join(RESERVED)}")
        for what, chosen, known in (("reads", self.reads, Reads), ("unit", self.unit, Unit)):
            if chosen not in get_args(known):
                raise unknown(f"{what} of {where}:", chosen, get_args(known))
        if self.bounds is not None and self.reads not in ("counts", "clean and counts"):
            raise ClasswiseError(f"{where}: bounds are computed from counts, but it reads {self.reads}")
        read = ("clean", "counts") if self.reads == "clean and counts" else (self.reads,)
        check_call(self.function, read, f"{where}: the function")
        check_call(self.interval, (*read, "alpha"), f"{where}: interval")
        check_call(self.bounds, read, f"{where}: bounds")

    def __call__(self, *arguments: Any) -> Any:
        """The value of the function."""
        return self.function(*arguments)

    def value(self, inputs: MetricInputs) -> float:
        """The value; NaN if what the metric reads is unknown, or some images are not evaluated."""
        arguments = inputs.arguments(self.reads)
        return math.nan if arguments is None else float(self._finite(arguments))

    def estimate(self, inputs: MetricInputs, alpha: float = 0.05) -> Estimate:
        """The value with its interval; NaN as in `value`."""
        arguments = inputs.arguments(self.reads)
        if arguments is None:
            return NO_ESTIMATE
        if self.interval is not None:
            found: Any = call_user_code(self.interval, *arguments, alpha)
            try:
                value, low, high = map(float, found)
            except (TypeError, ValueError) as error:
                what = f"interval of metric {self.name!r} returned {kind_text(found)}"
                raise ClasswiseError(f"{what}; return an Estimate (value, low, high)") from error
            self._check_finite(value)
            return Estimate(value, *(end if math.isfinite(end) else math.nan for end in (low, high)))
        known = inputs._estimates  # a bootstrap is not repeated for each table
        if (self.name, alpha) not in known:
            self._finite(arguments)
            known[self.name, alpha] = self._generic_estimate(inputs, arguments, alpha)
        return known[self.name, alpha]

    def possible(self, inputs: MetricInputs) -> Bounds[Fraction] | Bounds[float]:
        """Bounds of the value over all outcomes of the images that are not evaluated; equal for complete inputs.

        They are fractions if the metric is rational, and NaN where none are known.
        """
        if self.bounds is None:
            arguments = inputs.arguments(self.reads)
            if arguments is None:
                return UNKNOWN
            value: Any = self._finite(arguments)
            return Bounds(value, value)
        if self.reads == "counts":
            return call_user_code(self.bounds, inputs.counts)
        return UNKNOWN if inputs.clean is None else call_user_code(self.bounds, inputs.clean, inputs.counts)

    def value_in_table(self, inputs: MetricInputs) -> float:
        """The value for a table: NaN if code of the user raises an error (`MetricInputs.failures`)."""
        return self._in_table(lambda: self.value(inputs), math.nan, inputs)

    def estimate_in_table(self, inputs: MetricInputs, alpha: float = 0.05) -> Estimate:
        """The estimate for a table: NaN if code of the user raises an error (`MetricInputs.failures`)."""
        return self._in_table(lambda: self.estimate(inputs, alpha), NO_ESTIMATE, inputs)

    def possible_in_table(self, inputs: MetricInputs) -> Bounds[Fraction] | Bounds[float]:
        """The bounds for a table: NaN if code of the user raises an error (`MetricInputs.failures`)."""
        return self._in_table(lambda: self.possible(inputs), UNKNOWN, inputs)

    def _in_table(self, compute: Callable[[], T], gap: Any, inputs: MetricInputs) -> T:
        """A result for a table, so that one metric of the user does not cost all others; conditions raise the error."""
        if self.name in OWN_METRICS:
            return compute()
        try:
            return compute()
        except Exception as error:  # noqa: BLE001  # code of the user may raise any error
            place = user_code(error)
            where = "" if place is None else f" ({Path(place[0].f_code.co_filename).name}:{place[1]})"
            cause = original(error)
            message = str(cause) if isinstance(cause, ClasswiseError) else f"{type(cause).__name__}: {cause}"
            inputs._failures[self.name] = one_line(f"{message}{where}")
            _log_failure(self.name, inputs.failures[self.name])
            missing: T = gap
            return missing

    def _finite(self, arguments: tuple[Any, ...]) -> Fraction | float:
        """The value of the function; on resampled counts it may be infinite, on those of the audit it must not be."""
        value = self._value(arguments)
        self._check_finite(float(value))
        return value

    def _check_finite(self, value: float) -> None:
        """Check a value.

        Raises:
            ClasswiseError: if it is infinite; NaN is that of a metric that is not defined.
        """
        if math.isinf(value):
            raise ClasswiseError(
                f"metric {self.name!r} returned {value}; return a finite number, or NaN where it is not defined"
            )

    def _value(self, arguments: tuple[Any, ...]) -> Fraction | float:
        """The value of the function.

        Raises:
            ClasswiseError: if it is no number, or no fraction although the metric is rational.
        """
        value = call_user_code(self.function, *arguments)
        if self.rational and self.bounds is None and not isinstance(value, Fraction):
            raise ClasswiseError(
                f"metric {self.name!r} is rational, but returned {kind_text(value)}; return a Fraction"
            )
        try:
            return value if isinstance(value, Fraction) else float(value)
        except (TypeError, ValueError) as error:
            raise ClasswiseError(f"metric {self.name!r} returned {kind_text(value)}; return a number") from error

    def _generic_estimate(self, inputs: MetricInputs, arguments: tuple[Any, ...], alpha: float) -> Estimate:
        """The value with an interval of `classwise.stats.function_intervals`."""

        def function(*given: Any) -> float:
            return float(self._value(given))

        if self.reads == "counts":
            return interval_of_counts(function, arguments[0], alpha)
        if self.reads == "confusion":
            return interval_of_confusion(function, arguments[0], alpha)
        if inputs.outcomes is None:
            return Estimate(function(*arguments), math.nan, math.nan)
        outcomes = inputs.outcomes()
        if self.reads == "outcomes":
            return interval_of_outcomes(function, outcomes, alpha)
        pairs = np.zeros((len(inputs.counts.count), 2, 2), dtype=np.int64)
        np.add.at(pairs, tuple(outcomes[name].to_numpy().astype(np.int64) for name in ("group", "clean", "correct")), 1)
        return interval_of_pairs(function, pairs, alpha)


@functools.cache
def _log_failure(name: str, reason: str) -> None:
    """Log once that a metric has no value."""
    logger.warning("metric %r has no value in tables: %s", name, reason)


def failures_note(inputs: Iterable[MetricInputs]) -> str:
    """A sentence on the metrics without a value in a table, and why; empty if there are none."""
    failures = {name: reason for of in inputs for name, reason in of.failures.items()}
    return " ".join(f"{name} has no value: {reason}." for name, reason in failures.items())


@checked
def metric(**about: Any) -> Callable[[Callable[..., Any]], Metric]:
    """Make a metric of a function: its name, and the first line of its docstring as the definition.

    Args:
        **about: the fields of `Metric` other than ``function``; ``title`` is the name by default.

    Raises:
        ClasswiseError: for an unknown field, unit or input, an invalid name, or a function of other arguments.

    Example:
        >>> import numpy as np
        >>> from classwise.stats.bounds import BoundedCounts
        >>> from classwise.stats.counts import ClassCounts
        >>> from classwise.stats.registry import MetricInputs, metric
        >>> @metric(title="median")
        ... def median(counts):
        ...     "Median of the class accuracies."
        ...     return np.nanmedian(counts.accuracy)
        >>> counts = ClassCounts(np.array([10, 10, 10]), np.array([9, 5, 2]))
        >>> median.value(MetricInputs(BoundedCounts.of(counts)))
        0.5
    """
    fields = [attribute.name for attribute in dataclasses.fields(Metric) if attribute.name != "function"]
    for name in about:
        if name not in fields:
            raise unknown("field", name, fields, owner="a metric")

    def made(function: Callable[..., Any]) -> Metric:
        name = about.get("name", function.__name__)
        first_line = summary(function).removesuffix(".") or name
        return Metric(**{"name": name, "function": function, "title": name, "about": first_line, **about})

    return made


@functools.cache
def all_metrics() -> Mapping[str, Metric]:
    """Every metric of `METRICS` by its name there, those of installed packages last.

    Raises:
        ClasswiseError: if an installed package gives something else, or a name that is not valid.
    """
    found = {}
    for name in METRICS:
        part: Any = METRICS.load(name)
        if not isinstance(part, Metric):
            raise ClasswiseError(
                f"metric {METRICS[name]!r} is {kind_text(part)}; give a function with the decorator "
                "classwise.stats.registry.metric"
            )
        found[name] = dataclasses.replace(part, name=name)
    return found


def arranged(*first: str, without: Collection[str] = ()) -> list[Metric]:
    """The metrics of a table: the named ones in this order, then all others but for ``without``."""
    known = all_metrics()
    return [known[name] for name in (*first, *(name for name in known if name not in (*first, *without)))]
