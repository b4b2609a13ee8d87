"""Which classes belong together: pairs that are taken for each other, read from a matrix of errors.

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
from classwise.stats.resampling import RESAMPLES, percentiles, resampled_rows


@dataclass(frozen=True, eq=False)
class Pairs(AnalysisResult):
    """How strongly each two classes are tied by errors.

    Attributes:
        class_names: one for each class.
        superclasses: the superclass of each class, or None.
        matrix: (C, C) int64 images by truth (row) and the class that they were taken for; on the diagonal, the rest.
    """

    class_names: tuple[str, ...]
    superclasses: tuple[int, ...] | None
    matrix: IntArray

    @property
    def errors(self) -> IntArray:
        """(C, C) the matrix with zeros on its diagonal."""
        found: IntArray = self.matrix * ~np.eye(len(self.matrix), dtype=np.bool_)
        return found

    @property
    def ties(self) -> FloatArray:
        """(C, C) symmetric: the mean of the two shares of a class's errors that fall on the other; 0 without errors."""
        shares = np.nan_to_num(ratio(self.errors, self.errors.sum(axis=1, keepdims=True)))
        return np.asarray((shares + shares.T) / 2)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each two classes with an error between them, the strongest tie first.

        Columns: ``first`` and ``second`` (names), ``there`` and ``back`` (counts), ``tie`` (a fraction), ``mutual``
        (whether each is the class that the other is most often taken for), ``inside`` (one superclass; null without).
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
        known = frame[frame["tie"] > 0].sort_values("tie", ascending=False, kind="stable")
        return known.reset_index(drop=True)

    def lead(
        self, truth: int, taken: int, *, alpha: float = 0.05, resamples: int = RESAMPLES, seed: int = 0
    ) -> Estimate:
        """How much more often a class is taken for one class than for the next most frequent one.

        Args:
            truth: the class.
            taken: the class that it is taken for.
            alpha: 1 minus the coverage of the interval, for new images. It lies low, since the largest of several
                noisy counts is too large.
            resamples: of the images.
            seed: of the resampling.

        Returns:
            A fraction of the images of the class; above 0 where ``taken`` is the first.
        """
        drawn = resampled_rows(self.matrix, resamples=resamples, seed=seed)
        both = np.concatenate([self.matrix[None].astype(np.float64), drawn])[:, truth]
        others = [label for label in range(both.shape[1]) if label not in (truth, taken)]
        leads = ratio(both[:, taken] - both[:, others].max(axis=1), both.sum(axis=1))
        return percentiles(float(leads[0]), leads[1:], alpha)

    def figure(self) -> Drawing:
        """kdd21 E8: the ties of all pairs."""
        return matrix(
            "Mean share of the errors of two classes that fall on each other", self.class_names, self.ties, "tie"
        )


def pairs(matrix: ArrayLike, class_names: Sequence[str], superclasses: Sequence[int] | None = None) -> Pairs:
    """Find the classes that are taken for each other (kdd21 section 6.1).

    Args:
        matrix: (C, C) counts of images by truth (row) and the class that they were taken for, at least three classes;
            on the diagonal those of no such error.
        class_names: one for each class.
        superclasses: the superclass of each class, to set beside.

    Raises:
        ClasswiseError: if the matrix is not square, has negative entries or fewer than three classes, or names differ
            in number.
    """
    counts = np.asarray(matrix, dtype=np.int64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or len(counts) < 3 or counts.min() < 0:
        raise ClasswiseError(
            f"pairs of classes: expected counts (C, C) of three classes or more, got shape {counts.shape}"
        )
    if len(class_names) != len(counts):
        raise ClasswiseError(f"pairs of classes: {len(class_names)} names for {len(counts)} classes; give one for each")
    return Pairs(tuple(class_names), None if superclasses is None else tuple(superclasses), counts)
