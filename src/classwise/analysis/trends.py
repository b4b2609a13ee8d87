"""Trends: what every class did over the epochs, and how much the weakest one fluctuates.

kdd21 Figure 1; benz20/P1.11; cfa23 section 3.3 and Figure 4 (FAWA against a plain average).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.analysis.base import Finding
from classwise.errors import UserError, unknown
from classwise.stats.counts import FloatArray, outcomes
from classwise.stats.intervals import Estimate, student
from classwise.stats.resampling import RESAMPLES, percentiles, resampled_accuracies
from classwise.training.folder import Run


def measured(run: Run, split: str, measure: str) -> pd.DataFrame:
    """Epochs (rows, from 1) by classes (columns, by label) of one measure on one split of a run, fractions.

    Raises:
        UserError: if the run never measured it.
    """
    epochs = run.epochs
    if epochs.empty:
        raise UserError(f"{run.path} has not finished an epoch; let it train first")
    if measure not in epochs:
        raise unknown(f"{run.path}: measure", measure, ["clean", "robust"])
    rows = epochs[epochs["split"] == split]
    if rows.empty:
        raise unknown(f"{run.path}: split", split, list(dict.fromkeys(epochs["split"])))
    rows = rows[rows[measure].notna()]
    if rows.empty:
        raise UserError(f"{run.path}: {measure} was never measured on {split!r}; train with a validation split")
    table = rows.pivot_table(index="epoch", columns="label", values=measure, aggfunc="first").astype(float)
    return table.set_axis(table.index + 1, axis=0)


def images_of(run: Run, split: str) -> pd.Series[int]:
    """The images of each class of a split, by label."""
    rows = run.epochs
    rows = rows[rows["split"] == split]
    found: pd.Series[int] = rows[rows["epoch"] == rows["epoch"].max()].set_index("label")["count"].astype(int)
    return found


@dataclass(frozen=True, eq=False)
class Trend(Finding):
    """Class accuracies over the epochs of one or several runs.

    Attributes:
        measure: ``robust`` or ``clean``.
        epochs: a row for each run and epoch (from 1): ``run``, ``epoch``, ``overall`` (over images), ``worst``,
            ``worst_class``, ``gap`` (highest minus lowest class).
        classes: a row for each run, epoch and class: ``run``, ``epoch``, ``class``, ``accuracy``.
        summary: a row for each run, over the epochs of the window: means of ``overall`` and ``worst``; ``change`` and
            ``change_overall``, the mean absolute difference between adjacent epochs (worst and overall), each with
            ``_low`` and ``_high``; ``variance`` of the worst class's differences; ``turns``, how often another class
            became the weakest. The intervals are t intervals over the window's epochs: for other epochs of this run.
    """

    measure: str
    epochs: pd.DataFrame
    classes: pd.DataFrame
    summary: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame:
        """The table of the epochs."""
        return self.epochs


def trend(
    runs: Mapping[str, Run | tuple[Run, str]],
    measure: str = "robust",
    *,
    split: str = "valid",
    window: tuple[float, float] = (0.0, 1.0),
    alpha: float = 0.05,
) -> Trend:
    """Follow the classes over the epochs (kdd21 Figure 1), and the weakest one's fluctuation (cfa23 Figure 4).

    Args:
        runs: by name: a run, or a run and the split to look at (``valid-average`` is the averaged model).
        measure: ``"robust"`` or ``"clean"``.
        split: of the runs that name none.
        window: the epochs that the summary is over, as shares of the training: (0.5, 0.6) of 200 is 101 to 120.
        alpha: 1 minus the coverage of the intervals.

    Raises:
        UserError: if a run did not measure this, or the window holds no two epochs.
    """
    epochs, classes, summary = list[pd.DataFrame](), list[pd.DataFrame](), dict[str, dict[str, float]]()
    for name, given in runs.items():
        run, part = given if isinstance(given, tuple) else (given, split)
        table = measured(run, part, measure)
        weights = images_of(run, part).reindex(table.columns).fillna(0).to_numpy(dtype=np.float64)
        names = _names(run)
        values = table.to_numpy()
        frame = pd.DataFrame(
            {
                "run": name,
                "epoch": table.index.to_numpy(),
                "overall": np.nansum(values * weights, axis=1) / weights.sum(),
                "worst": np.nanmin(values, axis=1),
                "worst_class": [names[int(table.columns[at])] for at in np.nanargmin(values, axis=1)],
                "gap": np.nanmax(values, axis=1) - np.nanmin(values, axis=1),
            }
        )
        epochs.append(frame)
        wide = table.set_axis([names[int(label)] for label in table.columns], axis=1).rename_axis("epoch").reset_index()
        long = wide.melt("epoch", var_name="class", value_name="accuracy")
        classes.append(long.assign(run=name)[["run", "epoch", "class", "accuracy"]])
        summary[name] = _summary(frame[_inside(frame["epoch"], run.recipe.epochs, window)], name, alpha)
    if not epochs:
        raise UserError("no runs to follow; give one or more")
    whole = pd.DataFrame(summary).T.rename_axis("run")
    return Trend(measure, pd.concat(epochs, ignore_index=True), pd.concat(classes, ignore_index=True), whole)


@dataclass(frozen=True, eq=False)
class Fluctuation(Finding):
    """The mean absolute change of the weakest class between adjacent epochs.

    Attributes:
        runs: a row for each run: ``overall`` and ``worst`` (means over the epochs) and ``change``, with ``change_low``
            and ``change_high``.
        differences: of each further run's change from the first run's, with its interval.
    """

    runs: pd.DataFrame
    differences: Mapping[str, Estimate]

    @property
    def table(self) -> pd.DataFrame:
        """The table of the runs."""
        return self.runs


def fluctuation(
    runs: Mapping[str, ArrayLike],
    labels: ArrayLike,
    num_classes: int,
    *,
    alpha: float = 0.05,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Fluctuation:
    """The fluctuation of the weakest class, with intervals from images that all epochs and runs share (cfa23 Q3).

    The images are resampled jointly over epochs and runs, so that what all have in common cancels. Noise of the images
    makes changes larger than they are, in the value and once more in its interval; differences of runs suffer less.

    Args:
        runs: by name, (E, N) true where the model of an epoch is right on an image; E may differ between runs.
        labels: (N,) whole numbers in 0 .. C-1.
        num_classes: C.
        alpha: 1 minus the coverage of the intervals, for new images.
        resamples: of the images.
        seed: of the resampling.

    Raises:
        UserError: if the shapes do not fit, or a run has fewer than two epochs.
    """
    tables = {name: outcomes(correct, len(np.asarray(labels))) for name, correct in runs.items()}
    for name, table in tables.items():
        if table.ndim != 2 or len(table) < 2:
            raise UserError(f"{name!r}: expected shape (epochs, images) with two epochs or more, got {table.shape}")
    if not tables:
        raise UserError("no runs to follow; give one or more")
    stack = np.concatenate(list(tables.values()))
    ends = np.cumsum([len(table) for table in tables.values()])[:-1]
    drawn = np.split(resampled_accuracies(stack, labels, num_classes, resamples=resamples, seed=seed), ends, axis=1)
    rows, changes = list[dict[str, float]](), list[FloatArray]()
    for table, again in zip(tables.values(), drawn, strict=True):
        size = np.bincount(np.asarray(labels), minlength=num_classes)
        right = np.stack([np.bincount(np.asarray(labels)[row], minlength=num_classes) for row in table])
        worst = (right[:, size > 0] / size[size > 0]).min(axis=1)
        changes.append(np.abs(np.diff(np.nanmin(again, axis=2), axis=1)).mean(axis=1))
        estimate = percentiles(float(np.abs(np.diff(worst)).mean()), changes[-1], alpha)
        row = {"overall": float(table.mean()), "worst": float(worst.mean()), "change": estimate.value}
        rows.append(row | {"change_low": estimate.low, "change_high": estimate.high})
    frame = pd.DataFrame(rows, index=pd.Index(list(tables), name="run"))
    first, *others = tables
    gaps = {
        name: percentiles(float(frame["change"][name] - frame["change"][first]), changes[at] - changes[0], alpha)
        for at, name in enumerate(others, start=1)
    }
    return Fluctuation(frame, gaps)


def inside(epoch: int, total: int, window: tuple[float, float]) -> bool:
    """Whether an epoch (from 1) lies in a window of shares of the training: above the first, up to the second."""
    return window[0] * total - 1e-9 < epoch - 0.5 < window[1] * total + 1e-9


def _inside(epochs: pd.Series[int], total: int, window: tuple[float, float]) -> list[bool]:
    return [inside(int(epoch), total, window) for epoch in epochs]


def _names(run: Run) -> dict[int, str]:
    epochs = run.epochs.drop_duplicates("label")
    return dict(zip(epochs["label"].astype(int), epochs["class"].astype(str), strict=True))


def _summary(frame: pd.DataFrame, name: str, alpha: float) -> dict[str, float]:
    if len(frame) < 2:
        raise UserError(f"{name!r}: the window holds {len(frame)} epochs; changes need at least 2")
    found = {"overall": float(frame["overall"].mean()), "worst": float(frame["worst"].mean())}
    for key, column in (("change", "worst"), ("change_overall", "overall")):
        steps = np.diff(frame[column].to_numpy(dtype=np.float64))
        size = student(np.abs(steps), alpha)
        found |= {key: size.value, f"{key}_low": size.low, f"{key}_high": size.high}
        if key == "change":
            found["variance"] = float(steps.var())
    weakest = frame["worst_class"].to_numpy()
    return found | {"turns": float((weakest[1:] != weakest[:-1]).sum())}
