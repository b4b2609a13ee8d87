"""Fluctuation of the worst-class accuracy between epochs, with intervals from a bootstrap over shared images.

cfa23 section 3.3 and Figure 4 (FAWA against a plain average).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.analysis.base import AnalysisResult
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.svg import Drawing
from classwise.stats.counts import FloatArray, outcomes
from classwise.stats.intervals import Estimate, two_sided_z
from classwise.stats.resampling import RESAMPLES, percentiles, resampled_accuracies

_LARGEST_BIAS = 1 / (np.sqrt(2) - 1)
"""Bias of a mean absolute value of normal noise about 0, over the further bias if equal noise is added."""


@dataclass(frozen=True, eq=False)
class Fluctuation(AnalysisResult):
    """Mean absolute change of the worst-class accuracy between adjacent epochs.

    Attributes:
        runs: a row for each run: ``overall`` and ``worst`` (means over the epochs) and ``change``, with ``change_low``
            and ``change_high``.
        differences: ``change`` of each further run minus that of the first run, with its interval.
    """

    runs: pd.DataFrame
    differences: Mapping[str, Estimate]

    def figure(self) -> Drawing:
        """cfa23 Figure 4: mean change of the worst-class accuracy between adjacent epochs."""
        frame = self.runs
        values = [[Value(row["change"], row["change_low"], row["change_high"], 0)] for _, row in frame.iterrows()]
        title = "Mean change of the worst class between epochs, in points"
        return dot_rows(
            title, [str(name) for name in frame.index], ["change"], values, difference=True, width=ROW_WIDTH
        )


def fluctuation(
    runs: Mapping[str, ArrayLike],
    labels: ArrayLike,
    num_classes: int,
    *,
    alpha: float = 0.05,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Fluctuation:
    """Estimate the fluctuation of the worst-class accuracy between epochs (cfa23 Q3).

    The images are resampled jointly over epochs and runs, so that shared errors cancel. The mean absolute change is
    biased up by noise. Its upper end is the bootstrap percentile, in which the bias counts twice. Its lower end is the
    mean of the changes less their reach, z standard errors at Bonferroni's level of all changes, each at least 0. The
    interval of a difference of runs contains the percentile interval (Efron 1979), and the same corrected for the bias
    of the value: where there is no change, 2.4 times the bias of the resampled values. Its level is alpha/2, since this
    bias is an estimate, too.

    Args:
        runs: by name, (E, N) true where the model of an epoch is correct on an image; E may differ between runs.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C.
        alpha: 1 minus the coverage of the intervals, for new images.
        resamples: number of resamples of the images.
        seed: seed of the resampling.

    Raises:
        ClasswiseError: if the shapes do not match, or a run has fewer than two epochs.
    """
    tables = {name: outcomes(correct, len(np.asarray(labels))) for name, correct in runs.items()}
    for name, table in tables.items():
        if table.ndim != 2 or len(table) < 2:
            raise ClasswiseError(
                f"{name!r}: expected shape (epochs, images) with at least two epochs, got {table.shape}"
            )
    if not tables:
        raise ClasswiseError("runs: empty; pass at least one run")
    stack = np.concatenate(list(tables.values()))
    ends = np.cumsum([len(table) for table in tables.values()])[:-1]
    resampled = np.split(resampled_accuracies(stack, labels, num_classes, resamples=resamples, seed=seed), ends, axis=1)
    rows, changes = list[dict[str, float]](), list[FloatArray]()
    for table, accuracies in zip(tables.values(), resampled, strict=True):
        size = np.bincount(np.asarray(labels), minlength=num_classes)
        right = np.stack([np.bincount(np.asarray(labels)[row], minlength=num_classes) for row in table])
        worst = (right[:, size > 0] / size[size > 0]).min(axis=1)
        steps, drawn = np.diff(worst), np.diff(np.nanmin(accuracies, axis=2), axis=1)
        changes.append(np.abs(drawn).mean(axis=1))
        estimate = percentiles(float(np.abs(steps).mean()), changes[-1], alpha)
        reach = two_sided_z(alpha / 2 / len(steps)) * drawn.std(axis=0)
        estimate = estimate._replace(low=float(np.maximum(np.abs(steps) - reach, 0).mean()))
        row = {"overall": float(table.mean()), "worst": float(worst.mean()), "change": estimate.value}
        rows.append(row | {"change_low": estimate.low, "change_high": estimate.high})
    frame = pd.DataFrame(rows, index=pd.Index(list(tables), name="run"))
    first, *others = tables
    differences = {}
    for at, name in enumerate(others, start=1):
        value, samples = float(frame["change"][name] - frame["change"][first]), changes[at] - changes[0]
        differences[name] = _corrected(percentiles(value, samples, alpha / 2), samples)
    return Fluctuation(frame, differences)


def _corrected(estimate: Estimate, samples: FloatArray) -> Estimate:
    """The interval that contains a percentile interval and the same one, corrected for the largest bias."""
    value, low, high = estimate
    shift = (1 + _LARGEST_BIAS) * (value - float(samples.mean()))
    return Estimate(value, min(low, low + shift), max(high, high + shift))
