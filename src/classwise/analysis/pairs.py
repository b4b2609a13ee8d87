"""Pairs of classes that are confused with each other, from a matrix of errors.

kdd21 section 6.1 (E8): 3-5, 1-9 and 0-8 of CIFAR-10, from the misclassified and the homing matrix; iclr21 claim C4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.analysis.base import AnalysisResult
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.matrix import matrix
from classwise.reporting.svg import Drawing
from classwise.stats.counts import FloatArray, IntArray, ratio
from classwise.stats.intervals import Estimate
from classwise.stats.paired import paired_interval


@dataclass(frozen=True, eq=False)
class Pairs(AnalysisResult):
    """Strength of the mutual confusion of all pairs of classes.

    Attributes:
        class_names: (C,) names.
        superclasses: the superclass of each class, or None.
        matrix: (C, C) int64 images by label (row) and prediction (column).
    """

    class_names: tuple[str, ...]
    superclasses: tuple[int, ...] | None
    matrix: IntArray

    @property
    def errors(self) -> IntArray:
        """(C, C) the matrix with zeros on its diagonal."""
        errors: IntArray = self.matrix * ~np.eye(len(self.matrix), dtype=np.bool_)
        return errors

    @property
    def ties(self) -> FloatArray:
        """(C, C) symmetric: mean of the shares of the errors of i that are j and of the errors of j that are i."""
        shares = np.nan_to_num(ratio(self.errors, self.errors.sum(axis=1, keepdims=True)))
        return np.asarray((shares + shares.T) / 2)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each pair of classes with an error between them, the strongest tie first.

        Columns: ``first`` and ``second`` (names), ``there`` and ``back`` (counts of errors in both directions), ``tie``
        (a fraction), ``mutual`` (whether each is the most frequent wrong prediction for the other), ``inside`` (whether
        they have the same superclass; null without superclasses).
        """
        one, other = np.triu_indices(len(self.matrix), k=1)
        errors, names = self.errors, np.asarray(self.class_names, dtype=object)
        top = errors.max(axis=1)
        largest = (errors == top[:, None]) & (top[:, None] > 0)
        group = None if self.superclasses is None else np.asarray(self.superclasses)
        frame = pd.DataFrame(
            {
                "first": names[one],
                "second": names[other],
                "there": errors[one, other],
                "back": errors[other, one],
                "tie": self.ties[one, other],
                "mutual": largest[one, other] & largest[other, one],
                "inside": pd.Series(
                    [None] * len(one) if group is None else group[one] == group[other], dtype="boolean"
                ),
            }
        )
        tied = frame[frame["tie"] > 0].sort_values("tie", ascending=False, kind="stable")
        return tied.reset_index(drop=True)

    def lead(self, truth: int, taken: int, *, alpha: float = 0.05) -> Estimate:
        """How much more often a class is misclassified as one class than as the next most frequent one.

        It is the minimum of the differences to the other classes. Each has the interval of two paired proportions
        (`paired_interval`), since both counts are of the same images. The minimum of the lower ends needs no correction
        for the number of classes: it is too high only if that of the truly next class is. The upper ends are
        simultaneous (Bonferroni).

        Args:
            truth: label of the class.
            taken: the predicted class.
            alpha: 1 minus the coverage of the interval, for new images.

        Returns:
            A fraction of the images of the class; above 0 if ``taken`` is the most frequent wrong prediction. NaN for
            a class without images.
        """
        row = self.matrix[truth]
        others = np.delete(row, [truth, taken])
        differences = ratio(row[taken] - others, row.sum())
        images, own = np.full_like(others, row.sum()), np.full_like(others, row[taken])
        low = paired_interval(own, others, images, alpha).low.min()
        high = paired_interval(own, others, images, alpha / len(others)).high.min()
        return Estimate(float(differences.min()), float(low), float(high))

    def figure(self) -> Drawing:
        """kdd21 E8: the ties of all pairs."""
        return matrix(
            "Mean share of the errors of two classes that are the other class", self.class_names, self.ties, "tie"
        )


def pairs(matrix: ArrayLike, class_names: Sequence[str], superclasses: Sequence[int] | None = None) -> Pairs:
    """Find the classes that are confused with each other (kdd21 section 6.1).

    Args:
        matrix: (C, C) counts of images by label (row) and prediction (column), C at least 3.
        class_names: (C,) names.
        superclasses: the superclass of each class, or None.

    Raises:
        ClasswiseError: if the matrix is not square, has negative entries or fewer than three classes, or the number of
            names differs.
    """
    counts = np.asarray(matrix, dtype=np.int64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or len(counts) < 3 or counts.min() < 0:
        raise ClasswiseError(
            f"pairs of classes: expected counts of shape (C, C) with C at least 3, got shape {counts.shape}"
        )
    if len(class_names) != len(counts):
        raise ClasswiseError(
            f"pairs of classes: {len(class_names)} names for {len(counts)} classes; pass one name per class"
        )
    return Pairs(tuple(class_names), None if superclasses is None else tuple(superclasses), counts)
