"""Confusion matrices under attack, their symmetry, and the share of errors within superclasses.

kdd21 section 4.2 and Figure 2; iclr21 Figure 2; benz20 section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult, last_iterates
from classwise.auditing.outcomes.table import Outcomes
from classwise.reporting.figures.heatmap import Confusion, heatmap
from classwise.reporting.svg import Drawing
from classwise.stats.confusion import confusion, confusion_rates, superclass_leakage
from classwise.stats.correlations import Correlation, pearson_correlation
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate, proportion_interval
from classwise.stats.stratified import sum_of_class_means


class Inside(NamedTuple):
    """Errors within the superclass, compared with errors across superclasses.

    Attributes:
        share: share of the errors within the superclass, with its `proportion_interval`.
        chance: that share if errors were distributed uniformly over the other classes.
        excess: share minus chance, with its interval; above 0 if errors concentrate within superclasses.
        contrast: the mean rate M_ij over the pairs of classes within a superclass, minus that over the pairs across
            (kdd21 claim C6), with its interval; NaN if one of the two kinds of pairs does not exist.
    """

    share: Estimate
    chance: float
    excess: Estimate
    contrast: Estimate


@dataclass(frozen=True, eq=False)
class Confused(AnalysisResult):
    """A confusion matrix under one attack, its symmetry and its errors within superclasses.

    Attributes:
        attack: the attack.
        class_names: (C,) names.
        matrix: (C, C) int64, images by label (row) and prediction (column).
        superclasses: the superclass of each class, or None.
        superclass_names: names of the superclasses.
        correlation: correlation of the rates M_ij and M_ji over i < j, with intervals of that of the true rates.
        overlap: 1 - sum |M - M^T| / sum (M + M^T) of the rates, with its interval (`symmetric_share`).
        inside: the errors within the superclass; None without superclasses.
        alpha: 1 minus the coverage of the intervals.
    """

    attack: str
    class_names: tuple[str, ...]
    matrix: IntArray
    superclasses: tuple[int, ...] | None
    superclass_names: tuple[str, ...]
    correlation: Correlation
    overlap: Estimate
    inside: Inside | None
    alpha: float

    @property
    def pearson(self) -> Estimate:
        """`correlation` with its interval."""
        return self.correlation.estimate(self.alpha)

    @property
    def order(self) -> IntArray:
        """(C,) labels sorted by superclass (stable)."""
        groups = self.superclasses if self.superclasses is not None else (0,) * len(self.class_names)
        return np.argsort(groups, kind="stable").astype(np.int64)

    @property
    def table(self) -> pd.DataFrame:
        """Rates (label by prediction, fractions), sorted by superclass."""
        names = [self.class_names[label] for label in self.order]
        rates = confusion_rates(self.matrix)[np.ix_(self.order, self.order)]
        return pd.DataFrame(rates, index=pd.Index(names, name="truth"), columns=pd.Index(names, name="prediction"))

    def figure(self) -> Drawing:
        """kdd21 Figure 2: rates of each class, sorted by superclass."""
        counts = Confusion(self.matrix, self.class_names, self.superclasses, self.superclass_names)
        return heatmap(counts.grouped().condensed()[0], "rates")


def confused(outcomes: Outcomes, attack: str, *, alpha: float = 0.05, seed: int = 0) -> Confused:
    """Compute the confusion matrix of one attack, its symmetry and its errors within superclasses (kdd21 section 4.2).

    Args:
        outcomes: outcomes of an audit with ``early_stop=False``, or of external predictions.
        attack: name of the attack, or ``clean``.
        alpha: 1 minus the coverage of the intervals, for new images of the same classes.
        seed: seed of the split of the images for the upper end of `Confused.overlap`.

    Raises:
        ClasswiseError: if the rows are not the last iterates of the attack.
    """
    rows = last_iterates(outcomes, attack)
    rows = rows[rows["prediction"].notna()]
    predictions = rows["prediction"].to_numpy(dtype=np.int64)
    matrix = confusion(rows["label"].to_numpy(), predictions, outcomes.num_classes)
    superclasses, inside = outcomes.meta.superclasses, None
    if superclasses is not None:
        group = np.asarray(superclasses)
        inside = Inside(*_leakage(matrix, group, alpha), excess(matrix, group, alpha), contrast(matrix, group, alpha))
    return Confused(
        attack=outcomes.member(attack),
        class_names=outcomes.class_names,
        matrix=matrix,
        superclasses=superclasses,
        superclass_names=outcomes.meta.superclass_names,
        correlation=rate_correlation(matrix),
        overlap=symmetric_share(matrix, alpha, seed),
        inside=inside,
        alpha=alpha,
    )


def rate_correlation(matrix: IntArray, superclasses: IntArray | None = None) -> Correlation:
    """Correlation of the rates M_ij and M_ji over the pairs i < j of classes with images (kdd21 section 4.2).

    Args:
        matrix: (C, C) confusion counts, label by prediction.
        superclasses: (C,) the superclass of each class: only pairs of one superclass are used. None: all pairs.
    """
    images = matrix.sum(axis=1)
    first, second = np.triu_indices(len(matrix), k=1)
    used = (images[first] > 0) & (images[second] > 0)
    if superclasses is not None:
        used &= superclasses[first] == superclasses[second]
    first, second = first[used], second[used]
    there, back = (ClassCounts(images[i], matrix[i, j]) for i, j in ((first, second), (second, first)))
    return pearson_correlation(there, back)


def symmetric_share(matrix: IntArray, alpha: float = 0.05, seed: int = 0) -> Estimate:
    """1 - sum |M_ij - M_ji| / sum (M_ij + M_ji) of the rates over i < j, with an interval.

    Noise enlarges the differences, so the value is biased down. The lower end is therefore valid as that of a linear
    function with the observed signs of the differences. For the upper end one half of the images determines the signs
    and the other one the sums, since with any fixed signs the sum of the differences is at most that of their absolute
    values. Each end is from `sum_of_class_means`.

    Args:
        matrix: (C, C) confusion counts, label by prediction; absent classes are excluded.
        alpha: 1 minus the coverage.
        seed: seed of the halves.

    Returns:
        Fractions; NaN without errors; the upper end is 1 if a class has a single image.
    """
    present = matrix.sum(axis=1) > 0
    counts = matrix[present][:, present]
    generator = np.random.default_rng(seed)
    halves = np.zeros_like(counts)
    for row, values in enumerate(counts):
        halves[row] = generator.multivariate_hypergeometric(values, int(values.sum()) // 2)
    value, low, _ = _share(counts, counts, alpha)
    if math.isnan(value) or (counts.sum(axis=1) < 2).any():
        return Estimate(value, low, 1.0 if low == low else math.nan)
    high = _share(counts - halves, halves, alpha).high
    return Estimate(value, min(low, value), max(1.0 if math.isnan(high) else high, value))
