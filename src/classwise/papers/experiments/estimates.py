"""Estimates shared by experiments: proportions and means over images, differences between two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.papers.bootstrap import Resampled, Statistic
from classwise.papers.interval_estimators import IntervalEstimator, averaged, greatest, minus, wider
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray
from classwise.stats.intervals import Estimate, two_sided_z, wilson
from classwise.stats.resampling import halves


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


def strongest(table: Outcomes, attacks: Sequence[str], where: BoolArray | None = None) -> str:
    """The attack with the lowest robust accuracy; the first at a tie.

    Args:
        table: outcomes of the attacks on the same images.
        attacks: names of the attacks.
        where: (N,) the images that are counted; None for all.
    """
    return min(attacks, key=lambda name: int(table.correct(name)[slice(None) if where is None else where].sum()))


@dataclass(frozen=True)
class Selected:
    """The strongest of several attacks, selected on one half of the images and evaluated on the other.

    Attributes:
        attack: name of the selected attack.
        images: the images of the other half under the selected attack (row 0) and the baseline (row 1).
    """

    attack: str
    images: Resampled

    def variance_change(self) -> IntervalEstimator:
        """CV under the attack minus that under the baseline, in percent squared, without the bias of the plug-in CV."""

        def unbiased(accuracy: FloatArray) -> FloatArray:
            classes = accuracy.shape[-1]
            noise = accuracy * (1 - accuracy) / np.maximum(self.images.count - 1, 1)
            return np.asarray(accuracy.var(axis=-1) - (1 - 1 / classes) * noise.mean(axis=-1))

        return self.images.part(lambda a: unbiased(a[..., 0, :]) - unbiased(a[..., 1, :]), 1e4)

    def discrepancy_change(self) -> IntervalEstimator:
        """MCD under the attack minus that under the baseline, in points."""
        labels, classes = self.images.labels, len(self.images.count)
        attacked, plain = (ClassCounts.from_labels(labels, row, classes) for row in self.images.right)
        return wider(attacked, plain)


def select_on_halves(table: Outcomes, attacks: Sequence[str], baseline: str, seed: int = 0) -> tuple[Selected, ...]:
    """Select the strongest attack on each half of the images, and evaluate it on the other half.

    An attack that is selected on the images on which it is evaluated looks stronger than it is. Given the selection on
    the other half, an estimate on one half is as valid as for an attack that was fixed in advance; the mean over both
    halves has the interval of `averaged`, since the two selections make the halves dependent.

    Args:
        table: outcomes of the attacks on the same images.
        attacks: names of the attacks to select from.
        baseline: the attack that they are compared with.
        seed: seed of the halves.
    """
    first = halves(table.labels, seed)
    selected = []
    for selection, evaluation in ((first, ~first), (~first, first)):
        attack = strongest(table, attacks, selection)
        rows = np.stack([table.correct(name)[evaluation] for name in (attack, baseline)])
        selected.append(Selected(attack, Resampled(rows, table.labels[evaluation], table.num_classes)))
    return tuple(selected)


def mean_of_halves(selected: Sequence[Selected], statistic: Statistic, scale: float = 100) -> IntervalEstimator:
    """Mean over the halves of a statistic of the class accuracies (..., 2, C), times ``scale`` (100 for points)."""
    return averaged([one.images.part(statistic, scale) for one in selected])
