"""The epochs of a run as tables: class accuracies, image counts, and windows of epochs."""

from __future__ import annotations

import pandas as pd

from classwise.core.errors import ClasswiseError, unknown
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


def inside(epoch: int, total: int, window: tuple[float, float]) -> bool:
    """Whether an epoch (from 1) is in a window (start, end] of fractions of ``total`` epochs."""
    return window[0] * total - 1e-9 < epoch - 0.5 < window[1] * total + 1e-9
