"""The epochs of a run as tables: class accuracies, image counts, and windows of epochs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError, unknown
from classwise.stats.counts import BoolArray
from classwise.training.folder import Run


def measured(run: Run, split: str, measure: str) -> pd.DataFrame:
    """One measure on one split of a run, as a table of epochs (rows, from 1) by labels (columns), fractions.

    Raises:
        ClasswiseError: if the run has no such measure or split.
    """
    epochs = run.epochs
    if epochs.empty:
        raise ClasswiseError(f"{run.path}: no finished epoch; at least one is required")
    if measure not in epochs:
        raise unknown(f"{run.path}: measure", measure, ["clean", "robust"])
    rows = epochs[epochs["split"] == split]
    if rows.empty:
        raise unknown(f"{run.path}: split", split, list(dict.fromkeys(epochs["split"])))
    rows = rows[rows[measure].notna()]
    if rows.empty:
        raise ClasswiseError(f"{run.path}: {measure} was never measured on {split!r}; train with a validation split")
    table = rows.pivot_table(index="epoch", columns="label", values=measure, aggfunc="first").astype(float)
    return table.set_axis(table.index + 1, axis=0)


def images_of(run: Run, split: str) -> pd.Series[int]:
    """The number of images of each class of a split, by label."""
    rows = run.epochs
    rows = rows[rows["split"] == split]
    count: pd.Series[int] = rows[rows["epoch"] == rows["epoch"].max()].set_index("label")["count"].astype(int)
    return count


def inside(epoch: ArrayLike, total: int, window: tuple[float, float]) -> BoolArray:
    """Whether epochs (from 1) are in a window (start, end] of fractions of ``total`` epochs."""
    middle = np.asarray(epoch) - 0.5
    return np.asarray((window[0] * total - 1e-9 < middle) & (middle < window[1] * total + 1e-9))


def class_names_of(run: Run) -> dict[int, str]:
    """The names of the classes of a run, by label."""
    classes = run.epochs.drop_duplicates("label")
    return dict(zip(classes["label"].astype(int), classes["class"].astype(str), strict=True))
