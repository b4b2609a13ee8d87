"""Confusion matrices under attack, their symmetry, and the share of errors within superclasses.

kdd21 section 4.2 and Figure 2; iclr21 Figure 2; benz20 section 3.2.
"""

from __future__ import annotations

import math
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
from classwise.stats.counts import ClassCounts, FloatArray, IntArray, ratio
from classwise.stats.intervals import Estimate, proportion_interval
from classwise.stats.stratified import sum_of_class_means

_HALVINGS = 30
"""Bisection steps."""


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
    half = np.stack([generator.multivariate_hypergeometric(row, int(row.sum()) // 2) for row in counts])
    value = _share(counts, _signs(counts))
    if math.isnan(value):
        return Estimate(value, value, value)
    low = _end(counts, _signs(counts), alpha, -1)
    high = _end(half, _signs(counts - half), alpha, 1) if half.sum(axis=1).all() else 1.0
    return Estimate(value, min(low, value), max(high, value))


def _signs(counts: IntArray) -> FloatArray:
    rates = confusion_rates(counts)
    return np.asarray(np.sign(np.round(rates - rates.T, 9)))


def _share(counts: IntArray, signs: FloatArray) -> float:
    """1 - sum s_ij (M_ij - M_ji) / sum (M_ij + M_ji) over i < j; NaN without errors."""
    rates = confusion_rates(counts) * ~np.eye(len(counts), dtype=np.bool_)
    return 1 - float(ratio((rates * signs).sum(), rates.sum()))


def _end(counts: IntArray, signs: FloatArray, alpha: float, side: int) -> float:
    """Lower (side -1) or upper (1) end of `_share`, by bisection.

    The end is the share from which on the interval of the numerator minus the share times the denominator excludes 0.
    """
    truth, predicted = _images(counts)
    wrong = truth != predicted
    symmetric = wrong * (1 - signs[truth, predicted])
    classes = np.ones(len(counts))

    def excluded(share: float) -> bool:
        found = sum_of_class_means(symmetric - share * wrong, truth, -share * classes, (2 - share) * classes, alpha)
        return found.low > 0 if side < 0 else found.high < 0

    inner, outer = min(max(_share(counts, signs), 0.0), 1.0) if wrong.any() else 0.5, float(side > 0)
    if not excluded(outer):
        return outer
    for _ in range(_HALVINGS):
        middle = (inner + outer) / 2
        inner, outer = (inner, middle) if excluded(middle) else (middle, outer)
    return outer


def excess(matrix: IntArray, group: IntArray, alpha: float = 0.05, *, part: float = 1) -> Estimate:
    """Share of the errors within superclasses minus that by chance (`superclass_leakage`), with an interval.

    Equally, the share of the errors across superclasses by chance, or a part of it, minus the measured one.

    Each error has the value 1 or 0, inside or not, minus the chance level of its label. The interval is that of the
    mean of independent, bounded values (`sum_of_class_means`).

    Args:
        matrix: (C, C) confusion counts, label by prediction.
        group: (C,) the superclass of each class.
        alpha: 1 minus the coverage.
        part: factor of the share across superclasses by chance.

    Returns:
        Fractions; NaN without errors.
    """
    truth, predicted = _images(matrix)
    wrong = truth != predicted
    if not wrong.any():
        return Estimate(math.nan, math.nan, math.nan)
    same, by_chance = group[truth] == group[predicted], ((group[:, None] == group).sum(axis=1) - 1) / (len(group) - 1)
    chance = 1 - part * (1 - by_chance)
    values, index = (same - chance[truth])[wrong], np.zeros(int(wrong.sum()), dtype=np.int64)
    return sum_of_class_means(values, index, [-chance.max()], [1 - chance.min()], alpha)


def contrast(matrix: IntArray, group: IntArray, alpha: float = 0.05) -> Estimate:
    """Mean rate M_ij over the pairs within a superclass minus that over the pairs across, with an interval.

    It is a sum over classes of means of bounded values of their images (`sum_of_class_means`).

    Args:
        matrix: (C, C) confusion counts, label by prediction; absent classes are excluded as labels.
        group: (C,) the superclass of each class.
        alpha: 1 minus the coverage.

    Returns:
        Fractions; NaN without a pair of one of the two kinds.
    """
    present = np.flatnonzero(matrix.sum(axis=1))
    same = (group[:, None] == group)[present]
    inside, across = same & (present[:, None] != np.arange(len(matrix))), ~same
    if not (inside.any() and across.any()):
        return Estimate(math.nan, math.nan, math.nan)
    weights = inside / inside.sum() - across / across.sum()
    truth, predicted = _images(matrix[present])
    low, high = np.minimum(weights.min(axis=1), 0), np.maximum(weights.max(axis=1), 0)
    return sum_of_class_means(weights[truth, predicted], truth, low, high, alpha)


def _leakage(matrix: IntArray, group: IntArray, alpha: float) -> tuple[Estimate, float]:
    """The share of the errors within superclasses with its interval, and the chance level."""
    share, chance = superclass_leakage(matrix, group)
    wrong = int(matrix.sum() - matrix.trace())
    low, high = proportion_interval(round(np.nan_to_num(share) * wrong), wrong, alpha)
    return Estimate(share, float(low), float(high)), chance


def _images(matrix: IntArray) -> tuple[IntArray, IntArray]:
    """Row and column of each image of a matrix of counts: two (N,) arrays."""
    truth, predicted = np.indices(matrix.shape).reshape(2, -1).repeat(matrix.ravel(), axis=1)
    return truth, predicted
