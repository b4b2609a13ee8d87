"""The epochs of a run as tables: class accuracies, image counts, and windows of the training."""

from __future__ import annotations

import pandas as pd

from classwise.core.errors import ClasswiseError, unknown
from classwise.training.folder import Run


def measured(run: Run, split: str, measure: str) -> pd.DataFrame:
    """Epochs (rows, from 1) by classes (columns, by label) of one measure on one split of a run, fractions.

    Raises:
        ClasswiseError: if the run never measured it.
    """
    epochs = run.epochs
    if epochs.empty:
        raise ClasswiseError(f"{run.path} has not finished an epoch; let it train first")
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
    """The images of each class of a split, by label."""
    rows = run.epochs
    rows = rows[rows["split"] == split]
    found: pd.Series[int] = rows[rows["epoch"] == rows["epoch"].max()].set_index("label")["count"].astype(int)
    return found


def inside(epoch: int, total: int, window: tuple[float, float]) -> bool:
    """Whether an epoch (from 1) lies in a window of shares of the training: above the first, up to the second."""
    return window[0] * total - 1e-9 < epoch - 0.5 < window[1] * total + 1e-9
