"""Estimates shared by experiments: proportions and means over images, differences between two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit
from classwise.stats.bootstrap import Resampled
from classwise.stats.counts import BoolArray, FloatArray
from classwise.stats.interval_estimators import IntervalEstimator, greatest, minus
from classwise.stats.intervals import Estimate, two_sided_z, wilson


def proportion(where: BoolArray) -> Estimate:
    """Share of true values with its 95 % Wilson interval.

    Args:
        where: (N,) bool.
    """
    low, high = wilson(where.sum(), len(where))
    return Estimate(float(where.mean()), float(low), float(high))


def mean(values: FloatArray) -> Estimate:
    """Mean with its 95 % normal interval; NaN for fewer than two values.

    Args:
        values: (N,).
    """
    if len(values) < 2:
        return Estimate(float("nan"), float("nan"), float("nan"))
    value, reach = float(values.mean()), two_sided_z(0.05) * float(values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(value, value - reach, value + reach)


def resampled(table: Outcomes, attacks: Sequence[str]) -> Resampled:
    """Resample attacks on the same images jointly, a row for each attack."""
    return Resampled(np.stack([table.correct(attack) for attack in attacks]), table.labels, table.num_classes)


def dropped_more(tables: Mapping[str, Outcomes], attacks: Sequence[str]) -> list[IntervalEstimator]:
    """Largest drop of the total from the first attack to the others: each further model minus the first model."""
    first, *others = tables.values()
    return [minus(largest_drop(other, attacks), largest_drop(first, attacks)) for other in others]


def largest_drop(table: Outcomes, attacks: Sequence[str]) -> IntervalEstimator:
    """Largest drop of the total from the first attack to any of the others, in points."""
    rows = np.stack([table.correct(name) for name in attacks])
    images = Resampled(rows, table.labels, table.num_classes)
    return greatest([images.total(0, place) for place in range(1, len(rows))])


def paired_models(one: Audit, other: Audit, attack: str = "all") -> Resampled:
    """Resample two models on the same images jointly."""
    first, second = one.outcomes, other.outcomes
    return Resampled(np.stack([first.correct(attack), second.correct(attack)]), first.labels, first.num_classes)


def average(pair: Resampled) -> IntervalEstimator:
    """Average of the first row minus that of the second, in points."""
    return pair.total()


def worst(pair: Resampled) -> IntervalEstimator:
    """Worst class of the first row minus that of the second, in points."""
    return pair.worst()
