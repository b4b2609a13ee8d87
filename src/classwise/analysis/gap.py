"""Gap between classes and ranking of classes: a standard model on clean images against a robust model under attack.

kdd21 section 4.3 (CV 28 times, MCD 5 times on CIFAR-10); iclr21 Appendix C, Figure 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes.table import CLEAN, Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting import formatting
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.svg import Drawing
from classwise.stats import gap_intervals, metric_intervals
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.ranks import Association, spearman, spearman_matrix
from classwise.stats.resampling import RESAMPLES, percentiles, resampled_counts

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
        variance: CV of both, fractions squared: unbiased estimates (`classwise.stats.gap_intervals.variance`).
        variance_ratio: the second over the first.
        order: Spearman's correlation of the two class rankings, with its permutation p-value over classes.
        order_interval: the same correlation with an interval for new images.
    """

    classes: pd.DataFrame
    counts: tuple[ClassCounts, ClassCounts]
    discrepancy: tuple[Estimate, Estimate]
    discrepancy_ratio: Estimate
    variance: tuple[Estimate, Estimate]
    variance_ratio: Estimate
    order: Association
    order_interval: Estimate

    @property
    def table(self) -> pd.DataFrame:
        """The table of the classes."""
        return self.classes

    def figure(self) -> Drawing:
        """iclr21 Figure 7: standard accuracy and robust accuracy of each class."""
        values = [
            [Value(row[side], row[f"{side}_low"], row[f"{side}_high"], int(row[f"{side}_n"])) for side in _SIDES]
            for _, row in self.classes.iterrows()
        ]
        first, second = (formatting.points(estimate.value) for estimate in self.discrepancy)
        title = f"Standard and robust accuracy; gap {first} and {second} points"
        return dot_rows(title, [str(name) for name in self.classes.index], _SIDES, values, width=ROW_WIDTH)


def gap(
    standard: Outcomes, robust: Outcomes, attack: str, *, alpha: float = 0.05, resamples: int = RESAMPLES, seed: int = 0
) -> Gap:
    """Compare a standard model's clean accuracies with a robust model's accuracies under attack (iclr21 Figure 7).

    Noise biases the plug-in MCD and CV up. CV is corrected for this bias; MCD has bounds that are valid under it. For
    the interval of the rank correlation the images of each class are resampled, independently for the two models.

    Args:
        standard: outcomes of the standard model, of which the clean accuracies are used.
        robust: outcomes of the robust model.
        attack: attack on the robust model.
        alpha: 1 minus the coverage of the intervals.
        resamples: number of resamples of the images.
        seed: seed of the resampling.

    Raises:
        ClasswiseError: if the class names differ.
    """
    if standard.class_names != robust.class_names:
        raise ClasswiseError("the two models have different classes; audit both on the same data set")
    counts = (standard.counts(CLEAN), robust.counts(attack))
    shared = counts[0].present & counts[1].present
    names = [name for name, present in zip(standard.class_names, shared, strict=True) if present]
    first, second = (ClassCounts(class_counts.count[shared], class_counts.correct[shared]) for class_counts in counts)
    return gap_of(first, second, names, alpha=alpha, resamples=resamples, seed=seed)


def gap_of(
    standard: ClassCounts,
    robust: ClassCounts,
    names: list[str],
    *,
    alpha: float = 0.05,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Gap:
    """`gap` of counts in which every class has images."""
    columns = dict[str, FloatArray]()
    for key, side in (("standard", standard), ("robust", robust)):
        low, high = class_intervals(side, alpha)
        columns |= {key: side.accuracy, f"{key}_n": side.count.astype(float), f"{key}_low": low, f"{key}_high": high}
    resampled = [
        resampled_counts(side, resamples=resamples, seed=seed + n) for n, side in enumerate((standard, robust))
    ]
    order = spearman(standard.accuracy, robust.accuracy, seed=seed)
    correlations = spearman_matrix(np.stack(resampled, axis=1))[:, 0, 1]
    return Gap(
        classes=pd.DataFrame(columns, index=pd.Index(names, name="class")),
        counts=(standard, robust),
        discrepancy=(metric_intervals.discrepancy(standard, alpha), metric_intervals.discrepancy(robust, alpha)),
        discrepancy_ratio=gap_intervals.discrepancy_ratio(robust, standard, alpha),
        variance=(gap_intervals.variance(standard, alpha), gap_intervals.variance(robust, alpha)),
        variance_ratio=gap_intervals.variance_ratio(robust, standard, alpha),
        order=order,
        order_interval=percentiles(order.value, correlations, alpha),
    )
