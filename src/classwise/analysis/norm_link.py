"""Correlation of class robustness with the norms of the rows of the last layer.

iclr21 section 3.2 and Figure 4: the l2 norms of the classifier's rows, without the bias, and class robustness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from torch import nn

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.models.base import last_linear
from classwise.reporting import formatting
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.figures.points import scatter
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Drawing
from classwise.stats.correlations import Correlation, fixed_halves, pearson_correlation, rank_correlation, split_counts
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.ranks import Association, kendall, pearson, spearman


@dataclass(frozen=True, eq=False)
class NormLink(AnalysisResult):
    """Class accuracies and the norms of the classifier's rows.

    Attributes:
        attack: attack of the accuracies.
        classes: a row for each class: ``accuracy`` (with ``low`` and ``high``), ``norm``, and both min-max normalised
            over the classes: ``accuracy_normalised``, ``norm_normalised`` (NaN if constant).
        pearson: linear correlation over classes, with its permutation p-value.
        spearman: rank correlation, likewise.
        kendall: tau-b and its p-value; it has no interval, since no correction for its attenuation is accurate.
        linear: Pearson's correlation, with intervals of that of the true accuracies.
        ranked: Spearman's correlation, likewise.
        alpha: 1 minus the coverage of `intervals`.
    """

    attack: str
    classes: pd.DataFrame
    pearson: Association
    spearman: Association
    kendall: Association
    linear: Correlation
    ranked: Correlation
    alpha: float

    @property
    def intervals(self) -> tuple[Estimate, Estimate]:
        """Pearson's and Spearman's correlation, with intervals for new images of the same classes and this model."""
        return self.linear.estimate(self.alpha), self.ranked.estimate(self.alpha)

    def curves(self) -> Drawing:
        """iclr21 Figure 4: accuracy and norm, min-max normalised over the shown classes, which are numbered from 0."""
        places = [float(place) for place in range(len(self.classes))]
        lines = [
            Series(name, places, _normalised(self.classes[name].to_numpy()).tolist(), f"stroke-{colour}")
            for name, colour in zip(("accuracy", "norm"), SERIES, strict=False)
        ]
        title = f"Accuracy under {self.attack} and classifier norm, normalised"
        return line_chart(title, lines, "class", share=False)

    def figure(self) -> Drawing:
        """iclr21 Figure 4 as a scatter plot: class accuracy against the norm of the class's row."""
        frame = self.classes
        value, low, high = self.intervals[1]
        interval = "" if np.isnan(low) else f" ({low:.2f} to {high:.2f})"
        note = f"Spearman {value:.2f}{interval}, p {formatting.probability(self.spearman.p_value)}"
        axes = ("norm of the classifier's row", f"accuracy under {self.attack}, percent")
        names = [str(name) for name in frame.index]
        return scatter("Class accuracy and classifier norm", names, frame["norm"], frame["accuracy"], axes, note)


def row_norms(model: nn.Module) -> FloatArray:
    """(C,) l2 norms of the rows of a model's last linear layer (`last_linear`), without the bias.

    Raises:
        ClasswiseError: if the layer is unknown.
    """
    norms: FloatArray = last_linear(model).weight.detach().double().norm(dim=1).cpu().numpy()
    return norms


def norm_link(
    outcomes: Outcomes,
    attack: str,
    norms: ArrayLike,
    *,
    alpha: float = 0.05,
    seed: int = 0,
) -> NormLink:
    """Correlate class accuracies with the norms of the classifier's rows (iclr21 section 3.2).

    Args:
        outcomes: outcomes of the model.
        attack: an attack, ``clean`` (for a standard model) or ``all``.
        norms: (C,) norms, from `row_norms`.
        alpha: 1 minus the coverage of the intervals.
        seed: seed of the splits into halves and of the permutations.

    Raises:
        ClasswiseError: if the number of norms differs from C, or fewer than three classes have images.
    """
    return norm_link_of(outcomes.counts(attack), outcomes.class_names, norms, attack, alpha=alpha, seed=seed)


def norm_link_of(
    counts: ClassCounts,
    names: tuple[str, ...],
    norms: ArrayLike,
    attack: str = "",
    *,
    alpha: float = 0.05,
    seed: int = 0,
) -> NormLink:
    """`norm_link` of counts."""
    lengths = np.asarray(norms, dtype=np.float64)
    if lengths.shape != (counts.num_classes,):
        raise ClasswiseError(
            f"norms: expected one value for each of the {counts.num_classes} classes, got shape {lengths.shape}"
        )
    present = counts.present
    accuracy, length = counts.accuracy[present], lengths[present]
    low, high = class_intervals(counts, alpha)
    columns = {
        "accuracy": accuracy,
        "low": low[present],
        "high": high[present],
        "norm": length,
        "accuracy_normalised": _normalised(accuracy),
        "norm_normalised": _normalised(length),
    }
    frame = pd.DataFrame(columns, index=pd.Index(np.asarray(names, dtype=object)[present], name="class"))
    observed = (pearson(accuracy, length, seed=seed), spearman(accuracy, length, seed=seed), kendall(accuracy, length))
    known = ClassCounts(counts.count[present], counts.correct[present])
    halves = np.stack([split_counts(known, seed), fixed_halves(length)], axis=2)
    ranked = rank_correlation(np.stack([accuracy, length]), halves)
    return NormLink(attack, frame, *observed, pearson_correlation(known, length), ranked, alpha)


def _normalised(values: FloatArray) -> FloatArray:
    """Min-max normalise to [0, 1]; NaN if constant."""
    width = np.ptp(values)
    return (values - values.min()) / width if width else np.full(len(values), np.nan)
