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
from classwise.stats.confusion import confusion, confusion_rates, superclass_leakage, symmetry
from classwise.stats.counts import FloatArray, IntArray, ratio
from classwise.stats.intervals import Estimate, wilson
from classwise.stats.ranks import row_correlations
from classwise.stats.resampling import RESAMPLES, percentiles, resampled_rows


class Inside(NamedTuple):
    """Errors within the superclass, compared with errors across superclasses.

    Attributes:
        share: share of the errors within the superclass, with Wilson's interval.
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
        pearson: correlation of the rates M_ij and M_ji over i < j, with its interval.
        overlap: 1 - sum |M - M^T| / sum (M + M^T) of the rates, with its interval. The plug-in estimate and its
            resamples are biased down: for few errors the interval may be below the value.
        inside: the errors within the superclass; None without superclasses.
    """

    attack: str
    class_names: tuple[str, ...]
    matrix: IntArray
    superclasses: tuple[int, ...] | None
    superclass_names: tuple[str, ...]
    pearson: Estimate
    overlap: Estimate
    inside: Inside | None

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


def confused(
    outcomes: Outcomes, attack: str, *, alpha: float = 0.05, resamples: int = RESAMPLES, seed: int = 0
) -> Confused:
    """Compute the confusion matrix of one attack, its symmetry and its errors within superclasses (kdd21 section 4.2).

    Args:
        outcomes: outcomes of an audit with ``early_stop=False``, or of external predictions.
        attack: name of the attack, or ``clean``.
        alpha: 1 minus the coverage of the intervals, for new images of the same classes.
        resamples: number of resamples of the images.
        seed: seed of the resampling.

    Raises:
        ClasswiseError: if the rows are not the last iterates of the attack.
    """
    rows = last_iterates(outcomes, attack)
    rows = rows[rows["prediction"].notna()]
    predictions = rows["prediction"].to_numpy(dtype=np.int64)
    matrix = confusion(rows["label"].to_numpy(), predictions, outcomes.num_classes)
    resampled = resampled_rows(matrix, resamples=resamples, seed=seed)
    pearson, overlap = _symmetries(resampled)
    observed = symmetry(confusion_rates(matrix))
    superclasses, inside = outcomes.meta.superclasses, None
    if superclasses is not None:
        inside = _inside(matrix, resampled, np.asarray(superclasses), alpha)
    return Confused(
        attack=outcomes.member(attack),
        class_names=outcomes.class_names,
        matrix=matrix,
        superclasses=superclasses,
        superclass_names=outcomes.meta.superclass_names,
        pearson=percentiles(observed.pearson, pearson, alpha),
        overlap=percentiles(observed.overlap, overlap, alpha),
        inside=inside,
    )


def _symmetries(counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`symmetry` of the rates of (R, C, C) counts: two (R,) arrays."""
    size = counts.sum(axis=2)
    present = np.flatnonzero(size[0] > 0)
    rates = (counts / np.maximum(size, 1)[:, :, None])[:, present][:, :, present]
    upper = np.triu_indices(len(present), k=1)
    above, below = rates[:, upper[0], upper[1]], rates[:, upper[1], upper[0]]
    return row_correlations(above, below), 1 - ratio(np.abs(above - below).sum(axis=1), (above + below).sum(axis=1))


def _inside(matrix: IntArray, resampled: FloatArray, group: IntArray, alpha: float) -> Inside:
    """Estimate the errors within superclasses from a matrix (C, C) and its resamples (R, C, C).

    The interval of the excess, a difference of two estimates, is from MOVER (Zou and Donner 2008), which assumes
    independence. The two are correlated; the fixed number of images per class compensates for that.
    """
    share, chance = superclass_leakage(matrix, group)
    wrong = int(matrix.sum() - matrix.trace())
    low, high = (float(end) for end in wilson(np.array(round(np.nan_to_num(share) * wrong)), np.array(wrong), alpha))
    by_chance = percentiles(chance, _chances(resampled, group), alpha)
    below, above = math.hypot(share - low, by_chance.high - chance), math.hypot(high - share, chance - by_chance.low)
    excess = Estimate(share - chance, share - chance - below, share - chance + above)
    contrasts = _contrasts(np.concatenate([matrix[None], resampled]), group)
    contrast = percentiles(float(contrasts[0]), contrasts[1:], alpha)
    return Inside(Estimate(share, low, high), chance, excess, contrast)


def _chances(counts: FloatArray, group: IntArray) -> FloatArray:
    """The chance levels (R,) of `superclass_leakage` for (R, C, C) counts."""
    errors = (counts * ~np.eye(len(group), dtype=np.bool_)).sum(axis=2)
    chance = ratio((group[:, None] == group[None, :]).sum(axis=1) - 1, len(group) - 1)
    return ratio(errors @ chance, errors.sum(axis=1))


def _contrasts(counts: FloatArray, group: IntArray) -> FloatArray:
    """Mean rate within superclasses minus that across (R,), of (R, C, C) counts; pairs of absent classes excluded."""
    size = counts.sum(axis=2, keepdims=True)
    rates, present = counts / np.maximum(size, 1), size[0] > 0
    same = group[:, None] == group[None, :]
    inside, across = same & ~np.eye(len(group), dtype=np.bool_) & present, ~same & present
    return ratio((rates * inside).sum((1, 2)), inside.sum()) - ratio((rates * across).sum((1, 2)), across.sum())
