"""Gap between classes and ranking of classes: a standard model on clean images against a robust model under attack.

kdd21 section 4.3 (CV 28 times, MCD 5 times on CIFAR-10); iclr21 Appendix C, Figure 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes.table import CLEAN, Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting import formatting
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.svg import Drawing
from classwise.stats.correlations import Correlation, half_means, random_halves, rank_correlation, split_counts
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.metrics.discrepancy import discrepancy_ratio, mcd_estimate
from classwise.stats.metrics.variance import unbiased_estimate, variance_ratio
from classwise.stats.ranks import Association, spearman

_SIDES = ("standard", "robust")


@dataclass(frozen=True, eq=False)
class Gap(AnalysisResult):
    """Class accuracies of a standard model on clean images, and of a robust model under attack.

    Attributes:
        classes: a row for each class with images in both: ``standard`` and ``robust`` (accuracies), each with ``_n``,
            ``_low`` and ``_high`` (of level ``alpha``, for new images).
        counts: counts of the standard and of the robust model, of these classes.
        discrepancy: MCD of both, fractions: the plug-in value, biased up, with bounds that are valid for equal classes.
        discrepancy_ratio: the second over the first, with such bounds.
        variance: CV of both, fractions squared: unbiased estimates (`classwise.stats.metrics.variance`).
        variance_ratio: the second over the first.
        order: Spearman's correlation of the two class rankings, with its permutation p-value over classes.
        ranked: the same correlation, with intervals of that of the true accuracies, for new images.
        alpha: 1 minus the coverage of `order_interval`.
    """

    classes: pd.DataFrame
    counts: tuple[ClassCounts, ClassCounts]
    discrepancy: tuple[Estimate, Estimate]
    discrepancy_ratio: Estimate
    variance: tuple[Estimate, Estimate]
    variance_ratio: Estimate
    order: Association
    ranked: Correlation
    alpha: float

    @property
    def order_interval(self) -> Estimate:
        """Spearman's correlation of the two class rankings with its interval."""
        return self.ranked.estimate(self.alpha)

    def figure(self) -> Drawing:
        """iclr21 Figure 7: standard accuracy and robust accuracy of each class."""
        values = [
            [Value(row[side], row[f"{side}_low"], row[f"{side}_high"], int(row[f"{side}_n"])) for side in _SIDES]
            for _, row in self.classes.iterrows()
        ]
        first, second = (formatting.points(estimate.value) for estimate in self.discrepancy)
        title = f"Standard and robust accuracy; gap {first} and {second} points"
        return dot_rows(title, [str(name) for name in self.classes.index], _SIDES, values, width=ROW_WIDTH)


def gap(standard: Outcomes, robust: Outcomes, attack: str, *, alpha: float = 0.05, seed: int = 0) -> Gap:
    """Compare a standard model's clean accuracies with a robust model's accuracies under attack (iclr21 Figure 7).

    Noise biases the plug-in MCD and CV up. CV is corrected for this bias; MCD has bounds that are valid under it. The
    interval of the rank correlation is corrected for the noise, which both models share on the same images.

    Args:
        standard: outcomes of the standard model, of which the clean accuracies are used.
        robust: outcomes of the robust model.
        attack: attack on the robust model.
        alpha: 1 minus the coverage of the intervals.
        seed: seed of the splits into halves and of the permutations.

    Raises:
        ClasswiseError: if the class names differ.
    """
    if standard.class_names != robust.class_names:
        raise ClasswiseError("the two models have different classes; audit both on the same data set")
    counts = (standard.counts(CLEAN), robust.counts(attack))
    shared = np.flatnonzero(counts[0].present & counts[1].present).tolist()
    names = [standard.class_names[label] for label in shared]
    first, second = (ClassCounts(class_counts.count[shared], class_counts.correct[shared]) for class_counts in counts)
    order = order_of(standard, robust, attack, shared, seed=seed)
    return gap_of(first, second, names, order, alpha=alpha, seed=seed)


def order_of(
    standard: Outcomes, robust: Outcomes, attack: str, classes: Sequence[int], *, seed: int = 0
) -> Correlation:
    """Spearman's correlation of the class rankings of `gap`, over some classes.

    Args:
        standard: outcomes of the standard model.
        robust: outcomes of the robust model, with the same class names.
        attack: attack on the robust model.
        classes: labels of classes with images in both.
        seed: seed of the splits into halves.
    """
    sides = ((standard, CLEAN), (robust, attack))
    values = np.stack([table.counts(name).accuracy for table, name in sides])
    halves = [
        half_means(
            table.correct(name)[None],
            table.labels,
            table.num_classes,
            random_halves(table.labels, table.index, seed),
        )
        for table, name in sides
    ]
    return rank_correlation(values[:, classes], np.concatenate(halves, axis=2)[..., classes])


def gap_of(
    standard: ClassCounts,
    robust: ClassCounts,
    names: list[str],
    order: Correlation | None = None,
    *,
    alpha: float = 0.05,
    seed: int = 0,
) -> Gap:
    """`gap` of counts in which every class has images.

    Args:
        standard: counts of the standard model.
        robust: counts of the robust model.
        names: names of the classes.
        order: result of `order_of`; None: the images of the two models are different ones.
        alpha: 1 minus the coverage of the intervals.
        seed: seed of the splits into halves and of the permutations.
    """
    sides = (standard, robust)
    if order is None:
        halves = np.stack([split_counts(side, seed + place) for place, side in enumerate(sides)], axis=2)
        order = rank_correlation(np.stack([side.accuracy for side in sides]), halves)
    columns = dict[str, FloatArray]()
    for key, side in (("standard", standard), ("robust", robust)):
        low, high = class_intervals(side, alpha)
        columns |= {key: side.accuracy, f"{key}_n": side.count.astype(float), f"{key}_low": low, f"{key}_high": high}
    return Gap(
        classes=pd.DataFrame(columns, index=pd.Index(names, name="class")),
        counts=(standard, robust),
        discrepancy=(mcd_estimate(standard, alpha), mcd_estimate(robust, alpha)),
        discrepancy_ratio=discrepancy_ratio(robust, standard, alpha),
        variance=(unbiased_estimate(standard, alpha), unbiased_estimate(robust, alpha)),
        variance_ratio=variance_ratio(robust, standard, alpha),
        order=(
            spearman(standard.accuracy, robust.accuracy, seed=seed)
            if len(names) > 2
            else Association(math.nan, math.nan)
        ),
        ranked=order,
        alpha=alpha,
    )
