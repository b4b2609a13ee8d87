"""Trends: class accuracies over the epochs, and the fluctuation of the worst class.

kdd21 Figure 1; benz20/P1.11; cfa23 section 3.3 and Figure 4 (FAWA against a plain average).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from classwise.analysis.base import AnalysisResult
from classwise.analysis.epochs import class_names_of, images_of, inside, measured
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Drawing
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate
from classwise.training.folder import Run


@dataclass(frozen=True, eq=False)
class Trend(AnalysisResult):
    """Class accuracies over the epochs of one or several runs.

    Attributes:
        measure: ``robust`` or ``clean``.
        epochs: a row for each run and epoch (from 1): ``run``, ``epoch``, ``overall`` (over images), ``worst``,
            ``worst_class``, ``gap`` (highest minus lowest class).
        classes: a row for each run, epoch and class: ``run``, ``epoch``, ``class``, ``accuracy``.
        summary: a row for each run, over the epochs of the window: means of ``overall`` and ``worst``; ``change`` and
            ``change_overall``, the mean absolute difference between adjacent epochs (worst and overall), each with
            ``_low`` and ``_high``; ``variance`` of the differences of the worst class; ``turns``, the number of changes
            of the worst class. The intervals are for other epochs of this run. Adjacent changes share an epoch, so they
            are correlated: the variance of their mean is bounded by that of 1-dependent values (Hoeffding and Robbins
            1948), 2 s^2 / n, and Student's t has half the degrees of freedom. From three epochs or fewer there is no
            interval (NaN). Rare drops, which the window may not contain, are not covered.
    """

    measure: str
    epochs: pd.DataFrame
    classes: pd.DataFrame
    summary: pd.DataFrame

    def figure(self) -> Drawing:
        """kdd21 Figure 1 and cfa23 Figure 4: overall and worst-class accuracy of each run over the epochs."""
        lines = []
        single = len(self.summary) == 1
        for number, (run, frame) in enumerate(self.epochs.groupby("run", sort=False)):
            x, style = frame["epoch"].tolist(), f"stroke-{SERIES[number % len(SERIES)]}"
            if single:
                rows = self.classes[self.classes["run"] == run]
                wide = rows.pivot_table(index="epoch", columns="class", values="accuracy", sort=False)
                band = wide.min(axis=1).tolist(), wide.max(axis=1).tolist()
                lines += [Series(str(name), x, wide[name].tolist(), named=False) for name in wide]
                lines[0] = lines[0]._replace(low=band[0], high=band[1])
            prefix = "" if single else f"{run} "
            lines.append(Series(f"{prefix}overall", x, frame["overall"].tolist(), "line-overall" if single else style))
            lines.append(Series(f"{prefix}worst", x, frame["worst"].tolist(), "line-weak" if single else style))
        return line_chart(f"{self.measure.capitalize()} accuracy over the epochs, in percent", lines, "epoch")


def trend(
    runs: Mapping[str, Run | tuple[Run, str]],
    measure: str = "robust",
    *,
    split: str = "valid",
    window: tuple[float, float] = (0.0, 1.0),
    labels: Sequence[int] | None = None,
    alpha: float = 0.05,
) -> Trend:
    """Tabulate class accuracies over the epochs (kdd21 Figure 1), and the worst class's fluctuation (cfa23 Figure 4).

    Args:
        runs: by name: a run, or a run and its split (``valid-average`` is the averaged model).
        measure: ``"robust"`` or ``"clean"``.
        split: split of the runs that are passed without one.
        window: the epochs of the summary, as fractions of the training: (0.5, 0.6) of 200 epochs is 101 to 120.
        labels: the classes to include, such as a sample of many; None for all.
        alpha: 1 minus the coverage of the intervals.

    Raises:
        ClasswiseError: if a run has no such measure or no class of ``labels``, or fewer than two epochs in the window.
    """
    tables = dict[str, _Curves]()
    for name, entry in runs.items():
        run, run_split = entry if isinstance(entry, tuple) else (entry, split)
        table = measured(run, run_split, measure)
        if labels is not None:
            table = table.loc[:, table.columns.isin(list(labels))]
            if table.empty:
                raise ClasswiseError(f"{name!r}: labels {list(labels)}: none is a class of the run")
        weights = np.asarray(images_of(run, run_split).reindex(table.columns).fillna(0), dtype=np.float64)
        tables[name] = _Curves(table.rename(columns=class_names_of(run)), weights, run.recipe.epochs)
    return _trend(tables, measure, window, alpha)


def trend_of(
    counts: Mapping[str, Mapping[int, ClassCounts]],
    names: Sequence[str],
    measure: str = "robust",
    *,
    window: tuple[float, float] = (0.0, 1.0),
    alpha: float = 0.05,
) -> Trend:
    """`trend` of per-class counts by run and epoch (from 1), such as those of audits of saved epochs."""
    tables = {}
    for name, saved in counts.items():
        accuracy = pd.DataFrame([one.accuracy for one in saved.values()], index=list(saved), columns=list(names))
        tables[name] = _Curves(accuracy, next(iter(saved.values())).count.astype(np.float64), max(saved))
    return _trend(tables, measure, window, alpha)


class _Curves(NamedTuple):
    """Accuracies of a run by epoch (rows, from 1) and class name, the images of each class, and the run's epochs."""

    accuracy: pd.DataFrame
    images: FloatArray
    epochs: int


def _trend(tables: Mapping[str, _Curves], measure: str, window: tuple[float, float], alpha: float) -> Trend:
    epochs, classes, summary = list[pd.DataFrame](), list[pd.DataFrame](), dict[str, dict[str, float]]()
    for name, (table, weights, total) in tables.items():
        values = table.to_numpy()
        frame = pd.DataFrame(
            {
                "run": name,
                "epoch": table.index.to_numpy(),
                "overall": np.nansum(values * weights, axis=1) / weights.sum(),
                "worst": np.nanmin(values, axis=1),
                "worst_class": [table.columns[at] for at in np.nanargmin(values, axis=1)],
                "gap": np.nanmax(values, axis=1) - np.nanmin(values, axis=1),
            }
        )
        epochs.append(frame)
        wide = table.rename_axis("epoch").reset_index()
        long = wide.melt("epoch", var_name="class", value_name="accuracy")
        classes.append(long.assign(run=name)[["run", "epoch", "class", "accuracy"]])
        summary[name] = _summary(frame[inside(frame["epoch"], total, window)], name, alpha)
    if not epochs:
        raise ClasswiseError("runs: empty; pass at least one run")
    whole = pd.DataFrame(summary).T.rename_axis("run")
    return Trend(measure, pd.concat(epochs, ignore_index=True), pd.concat(classes, ignore_index=True), whole)


def _summary(frame: pd.DataFrame, name: str, alpha: float) -> dict[str, float]:
    if len(frame) < 2:
        raise ClasswiseError(f"{name!r}: {len(frame)} epochs in the window; changes require at least 2")
    summary = {"overall": float(frame["overall"].mean()), "worst": float(frame["worst"].mean())}
    for key, column in (("change", "worst"), ("change_overall", "overall")):
        differences = np.diff(frame[column].to_numpy(dtype=np.float64))
        size = _mean_change(np.abs(differences), alpha)
        summary |= {key: size.value, f"{key}_low": size.low, f"{key}_high": size.high}
        if key == "change":
            summary["variance"] = float(differences.var())
    worst = frame["worst_class"].to_numpy()
    return summary | {"turns": float((worst[1:] != worst[:-1]).sum())}


def _mean_change(sizes: FloatArray, alpha: float) -> Estimate:
    """Mean size of (n,) changes, with its interval; see `Trend`."""
    mean, degrees, half_width = float(sizes.mean()), (len(sizes) - 1) / 2, float("nan")
    if degrees >= 1:
        half_width = float(special.stdtrit(degrees, 1 - alpha / 2) * sizes.std(ddof=1) * np.sqrt(2 / len(sizes)))
    return Estimate(mean, max(mean - half_width, 0.0) if degrees >= 1 else half_width, mean + half_width)
