"""Histogram of the class accuracies.

iclr21 Appendix A, Figure 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.columns import Panel, column_panels
from classwise.reporting.svg import Drawing
from classwise.stats.counts import ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import class_intervals

_TINY = 1e-9


@dataclass(frozen=True, eq=False)
class Spread(AnalysisResult):
    """Histogram of the class accuracies.

    Attributes:
        attack: attack of the accuracies.
        edges: (B + 1,) fractions; the first bin contains both its ends, every other one only its upper end.
        count: (B,) number of classes in each bin.
        low: (B,) number of classes whose interval is within the bin, for new images of the same classes.
        high: (B,) number of classes whose interval overlaps the bin. The intervals of the classes are simultaneous
            (Clopper and Pearson; Sidak), so that all bins hold at once.
        accuracies: (C,) the class accuracies, NaN for absent classes.
    """

    attack: str
    edges: FloatArray
    count: IntArray
    low: FloatArray
    high: FloatArray
    accuracies: FloatArray

    @property
    def table(self) -> pd.DataFrame:
        """A row for each bin: ``above``, ``up_to``, ``classes``, ``low``, ``high``."""
        columns = {"above": self.edges[:-1], "up_to": self.edges[1:], "classes": self.count}
        return pd.DataFrame({**columns, "low": self.low, "high": self.high})

    def figure(self) -> Drawing:
        """iclr21 Figure 6: number of classes by accuracy."""
        low, *ends = (f"{100 * edge:.0f}" for edge in self.edges)
        names = [f"{start}\u2013{end}" for start, end in zip([low, *ends[:-1]], ends, strict=True)]
        panel = Panel(
            f"classes, under {self.attack}",
            self.count.tolist(),
            self.low.tolist(),
            self.high.tolist(),
        )
        return column_panels("Classes by accuracy, in percent", names, [panel])


def spread(outcomes: Outcomes, attack: str, *, bins: int = 10, alpha: float = 0.05) -> Spread:
    """Count the classes by accuracy in bins of equal width: [0, 10 %], (10, 20 %], ... (iclr21 Figure 6).

    Args:
        outcomes: outcomes of an audit.
        attack: an attack, ``clean`` or ``all``.
        bins: number of bins.
        alpha: 1 minus the coverage of the intervals of the counts.
    """
    return spread_of(outcomes.counts(attack), attack, bins=bins, alpha=alpha)


def spread_of(counts: ClassCounts, attack: str = "", *, bins: int = 10, alpha: float = 0.05) -> Spread:
    """`spread` of counts.

    Raises:
        ClasswiseError: if ``bins`` is below 1.
    """
    if bins < 1:
        raise ClasswiseError(f"bins = {bins}: must be at least 1")
    ends = class_intervals(counts, alpha, simultaneous=True)
    first, last, own = (_bins(values[counts.present], bins) for values in (*ends, counts.accuracy))
    every = np.arange(bins)[:, None]
    low = ((first == every) & (last == every)).sum(axis=1)
    high = ((first <= every) & (every <= last)).sum(axis=1)
    count = np.bincount(own, minlength=bins)
    edges = np.linspace(0, 1, bins + 1)
    return Spread(attack, edges, count, low.astype(np.float64), high.astype(np.float64), counts.accuracy)


def _bins(accuracies: FloatArray, bins: int) -> IntArray:
    """The bins of accuracies (C,)."""
    # 0.3 * 10 is slightly above 3 in floating point, but belongs to (20, 30].
    return np.ceil(accuracies * bins - _TINY).astype(np.int64).clip(1, bins) - 1
