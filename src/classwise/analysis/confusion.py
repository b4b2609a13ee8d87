"""Confusion matrices under attack: who is taken for whom, how symmetrically, and within which superclass.

kdd21 section 4.2 and Figure 2; iclr21 Figure 2; benz20 section 3.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult, last_iterates
from classwise.auditing.outcomes import Outcomes
from classwise.reporting.figures.heatmap import Confusion, heatmap
from classwise.reporting.svg import Drawing
from classwise.stats.confusion import confusion, confusion_rates, superclass_leakage, symmetry
from classwise.stats.counts import FloatArray, IntArray, ratio
from classwise.stats.intervals import Estimate, wilson
from classwise.stats.resampling import RESAMPLES, percentiles, resampled_rows


class Inside(NamedTuple):
    """The errors that stay inside the superclass, and how they compare with those that leave it.

    Attributes:
        share: of all errors, with its interval (Wilson's: a few errors that all stay inside are no certainty).
        chance: what that share would be if every error fell on one of the other classes alike.
        excess: share minus chance, with its interval: above 0 where errors keep to the family.
        contrast: the mean rate M_ij over the pairs of classes inside a superclass, minus that over the pairs across
            (kdd21 claim C6), with its interval; NaN if there are no pairs of one of the two kinds.
    """

    share: Estimate
    chance: float
    excess: Estimate
    contrast: Estimate


@dataclass(frozen=True, eq=False)
class Confused(AnalysisResult):
    """A confusion matrix under one attack, and two statements about it.

    Attributes:
        attack: the attack.
        class_names: one for each class.
        matrix: (C, C) int64, images by truth (row) and prediction (column).
        superclasses: the superclass of each class, or None.
        superclass_names: one for each superclass.
        pearson: correlation of the rates M_ij and M_ji over i < j, with its interval.
        overlap: 1 - sum |M - M^T| / sum (M + M^T) of the rates, with its interval. Noise lowers it, and so does
            resampling: with few errors the interval lies below the value.
        inside: the errors inside the superclass; None without superclasses.
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
        """(C,) the classes, those of a superclass side by side, in their old order within it."""
        groups = self.superclasses if self.superclasses is not None else (0,) * len(self.class_names)
        return np.argsort(groups, kind="stable").astype(np.int64)

    @property
    def table(self) -> pd.DataFrame:
        """Percent of each class (truth by prediction) as fractions, in the order of the superclasses."""
        names = [self.class_names[label] for label in self.order]
        rates = confusion_rates(self.matrix)[np.ix_(self.order, self.order)]
        return pd.DataFrame(rates, index=pd.Index(names, name="truth"), columns=pd.Index(names, name="prediction"))

    def figure(self) -> Drawing:
        """kdd21 Figure 2: percent of each class, classes of a superclass side by side."""
        counts = Confusion(self.matrix, self.class_names, self.superclasses, self.superclass_names)
        return heatmap(counts.grouped().condensed()[0], "rates")


def confused(
    outcomes: Outcomes, attack: str, *, alpha: float = 0.05, resamples: int = RESAMPLES, seed: int = 0
) -> Confused:
    """The confusion matrix of one attack, its symmetry and its leakage between superclasses (kdd21 section 4.2).

    Args:
        outcomes: of an audit with ``early_stop=False``, or of predictions made elsewhere.
        attack: which attack, or ``clean``.
        alpha: 1 minus the coverage of the intervals, for new images of the same classes.
        resamples: of the images, for the intervals.
        seed: of the resampling.

    Raises:
        ClasswiseError: if the rows are not the attack's last iterates.
    """
    rows = last_iterates(outcomes, attack)
    rows = rows[rows["prediction"].notna()]
    predictions = rows["prediction"].to_numpy(dtype=np.int64)
    matrix = confusion(rows["label"].to_numpy(), predictions, outcomes.num_classes)
    drawn = resampled_rows(matrix, resamples=resamples, seed=seed)
    pearson, overlap = _symmetries(drawn)
    found = symmetry(confusion_rates(matrix))
    superclasses, inside = outcomes.meta.superclasses, None
    if superclasses is not None:
        inside = _inside(matrix, drawn, np.asarray(superclasses), alpha)
    return Confused(
        attack=outcomes.member(attack),
        class_names=outcomes.class_names,
        matrix=matrix,
        superclasses=superclasses,
        superclass_names=outcomes.meta.superclass_names,
        pearson=percentiles(found.pearson, pearson, alpha),
        overlap=percentiles(found.overlap, overlap, alpha),
        inside=inside,
    )


def _symmetries(drawn: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`symmetry` of the rates of (R, C, C) counts: two (R,) arrays."""
    size = drawn.sum(axis=2)
    present = np.flatnonzero(size[0] > 0)
    rates = (drawn / np.maximum(size, 1)[:, :, None])[:, present][:, :, present]
    upper = np.triu_indices(len(present), k=1)
    above, below = rates[:, upper[0], upper[1]], rates[:, upper[1], upper[0]]
    a, b = (side - side.mean(axis=1, keepdims=True) for side in (above, below))
    pearson = ratio((a * b).sum(axis=1), np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1)))
    return pearson, 1 - ratio(np.abs(above - below).sum(axis=1), (above + below).sum(axis=1))


def _inside(matrix: IntArray, drawn: FloatArray, group: IntArray, alpha: float) -> Inside:
    """The statements about superclasses of a matrix (C, C) and of its resamples (R, C, C).

    The excess is a difference of two numbers with intervals of their own, which MOVER (Zou and Donner 2008) joins as if
    they were independent; that the images of each class are a fixed number makes up for what they share.
    """
    share, chance = superclass_leakage(matrix, group)
    wrong = int(matrix.sum() - matrix.trace())
    low, high = (float(end) for end in wilson(np.array(round(np.nan_to_num(share) * wrong)), np.array(wrong), alpha))
    usual = percentiles(chance, _chances(drawn, group), alpha)
    below, above = math.hypot(share - low, usual.high - chance), math.hypot(high - share, chance - usual.low)
    excess = Estimate(share - chance, share - chance - below, share - chance + above)
    contrasts = _contrasts(np.concatenate([matrix[None], drawn]), group)
    contrast = percentiles(float(contrasts[0]), contrasts[1:], alpha)
    return Inside(Estimate(share, low, high), chance, excess, contrast)


def _chances(drawn: FloatArray, group: IntArray) -> FloatArray:
    """The chance values of `superclass_leakage` of (R, C, C) counts: (R,)."""
    errors = (drawn * ~np.eye(len(group), dtype=np.bool_)).sum(axis=2)
    chance = ratio((group[:, None] == group[None, :]).sum(axis=1) - 1, len(group) - 1)
    return ratio(errors @ chance, errors.sum(axis=1))


def _contrasts(counts: FloatArray, group: IntArray) -> FloatArray:
    """The mean rate inside minus that across of (R, C, C) counts, over the pairs whose truth has images: (R,)."""
    size = counts.sum(axis=2, keepdims=True)
    rates, there = counts / np.maximum(size, 1), size[0] > 0
    same = group[:, None] == group[None, :]
    inside, across = same & ~np.eye(len(group), dtype=np.bool_) & there, ~same & there
    return ratio((rates * inside).sum((1, 2)), inside.sum()) - ratio((rates * across).sum((1, 2)), across.sum())
