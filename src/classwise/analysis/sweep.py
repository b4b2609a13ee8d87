"""Sweeps: class accuracies over the values of a training hyper-parameter (radius, beta, lambda).

cfa23 sections 3.1, 3.2, 5.3.1: Figures 2, 3, 5 and 7; kdd21 Figure 4c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult
from classwise.analysis.epochs import class_names_of, images_of, inside, measured
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.lines import class_lines, line_chart
from classwise.reporting.svg import Drawing
from classwise.stats.intervals import Estimate, proportion_interval
from classwise.stats.stratified import p_value, weighted_mean
from classwise.training.folder import Run

Kind = Literal["window", "best", "last"]
OVERALL = "overall"


@dataclass(frozen=True, eq=False)
class Sweep(AnalysisResult):
    """Class accuracies at each value of a hyper-parameter.

    Attributes:
        setting: name of the hyper-parameter.
        measure: ``robust`` or ``clean``.
        rows: a row for each value, kind of epochs and class (``overall`` last): ``value``, ``kind`` (``window``, the
            mean over the chosen epochs; ``best``; ``last``), ``class``, ``n``, ``accuracy``, ``low``, ``high`` (of a
            proportion of the images of the split; all epochs share them, so averaging does not narrow the interval).
        alpha: 1 minus the coverage of the intervals.
    """

    setting: str
    measure: str
    rows: pd.DataFrame
    alpha: float = 0.05

    def values(self, kind: Kind) -> pd.DataFrame:
        """Accuracies, fractions: values of the hyper-parameter (rows) by classes (columns), ``overall`` last."""
        chosen = self.rows[self.rows["kind"] == kind]
        table = chosen.pivot_table(index="value", columns="class", values="accuracy", sort=False)
        return table[list(dict.fromkeys(chosen["class"]))].sort_index()

    def change(self, first: float, second: float, kind: Kind = "window") -> pd.DataFrame:
        """Change of each class's accuracy from one value to another.

        Columns: ``change``, ``low``, ``high`` (`classwise.stats.stratified.weighted_mean`; the runs are treated as
        independent, which is conservative for runs on the same images) and ``p``, which agree; neither is adjusted for
        the number of rows.

        Raises:
            ClasswiseError: for a value that is not in the sweep.
        """
        chosen = self.rows[self.rows["kind"] == kind]
        sides = [chosen[chosen["value"] == value].set_index("class") for value in (first, second)]
        for value, side in zip((first, second), sides, strict=True):
            if side.empty:
                known = ", ".join(f"{number:g}" for number in sorted(set(chosen["value"])))
                raise ClasswiseError(f"{self.setting} = {value:g} is not in the sweep; its values: {known}")
        one, two = sides
        change = two["accuracy"] - one["accuracy"]
        ends = [
            self._change(before, after, number, other)
            for before, after, number, other in zip(
                one["accuracy"], two["accuracy"], one["n"], two["n"].reindex(one.index), strict=True
            )
        ]
        columns = {"change": change, **dict(zip(("low", "high", "p"), np.transpose(ends), strict=True))}
        return pd.DataFrame(columns)

    def _change(self, before: float, after: float, images: float, images_after: float) -> tuple[float, float, float]:
        """The interval of a change of an accuracy and its p-value; NaN without images."""
        if math.isnan(before + after) or not images * images_after:
            return math.nan, math.nan, math.nan
        means = np.array([after, 1 - before])

        def interval(alpha: float) -> Estimate:
            return weighted_mean([images_after, images], means, means, [1.0, 1.0], alpha)

        _, low, high = interval(self.alpha)
        return low - 1, high - 1, p_value(interval, 1.0)

    def overfitting(self) -> pd.DataFrame:
        """Accuracy at the best minus that at the last epoch: values (rows) by classes (cfa23 section 3.1)."""
        return self.values("best") - self.values("last")

    def figure(self, kind: Kind = "window") -> Drawing:
        """cfa23 Figures 2 and 3: each class over the values of the hyper-parameter."""
        epochs = {"window": "chosen epochs", "best": "best epoch", "last": "last epoch"}[kind]
        title = f"{self.measure.capitalize()} accuracy ({epochs}), in percent"
        return line_chart(title, class_lines(self.values(kind)), self.setting)


def sweep(
    runs: Mapping[float, Run],
    setting: str,
    measure: str = "robust",
    *,
    split: str = "valid",
    window: tuple[float, float] = (0.5, 0.6),
    alpha: float = 0.05,
) -> Sweep:
    """Compare runs that differ in one hyper-parameter, per class (cfa23 Figures 2 and 3).

    Args:
        runs: runs by the value of the hyper-parameter.
        setting: name of the hyper-parameter.
        measure: ``"robust"`` or ``"clean"``. The robust accuracy is that under the validation attack of each run, at
            the radius of its recipe or of ``split``. For sweeps over the radius, audit the saved models instead.
        split: a split of the runs' epochs.
        window: the chosen epochs, as fractions of the training: (0.5, 0.6) of 200 epochs is 101 to 120.
        alpha: 1 minus the coverage of the intervals.

    Raises:
        ClasswiseError: if a run has no such measure, or no epoch in the window.
    """
    frames = [_of(value, run, measure, split, window, alpha) for value, run in sorted(runs.items())]
    if not frames:
        raise ClasswiseError(f"runs: empty; pass a run for each value of {setting}")
    return Sweep(setting, measure, pd.concat(frames, ignore_index=True), alpha)


def _of(value: float, run: Run, measure: str, split: str, window: tuple[float, float], alpha: float) -> pd.DataFrame:
    table = measured(run, split, measure)
    counts = images_of(run, split).reindex(table.columns).fillna(0).to_numpy(dtype=np.float64)
    chosen = inside(table.index, run.recipe.epochs, window)
    if not chosen.any():
        raise ClasswiseError(
            f"{run.path} has no epoch between the fractions {window[0]:g} and {window[1]:g} of its training"
        )
    kinds: dict[Kind, Any] = {"window": table[chosen].mean(), "last": table.iloc[-1]}
    best = run.best_epoch()
    if best is not None and best + 1 in table.index:
        kinds["best"] = table.loc[best + 1]
    names = [*table.rename(columns=class_names_of(run)), OVERALL]
    frames = []
    for kind, row in kinds.items():
        accuracy = row.to_numpy(dtype=np.float64)
        overall = float(np.nansum(accuracy * counts) / counts.sum())
        shares, sizes = np.append(accuracy, overall), np.append(counts, counts.sum())
        low, high = proportion_interval(shares * sizes, sizes, alpha)
        columns = {
            "value": value,
            "kind": kind,
            "class": names,
            "n": sizes,
            "accuracy": shares,
            "low": low,
            "high": high,
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)
