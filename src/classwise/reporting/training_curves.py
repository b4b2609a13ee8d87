"""The training behind an audited model: what each class did over the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from classwise.reporting import formatting
from classwise.reporting.figures.curves import MOST_POINTS, class_curves, class_table
from classwise.reporting.svg import Drawing
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals
from classwise.training.folder import Run, Which

PANELS: Sequence[tuple[str, str, str]] = (
    ("valid", "robust", "Robust accuracy, validation images"),
    ("valid-average", "robust", "Robust accuracy of the averaged weights, validation"),
    ("train", "robust", "Robust accuracy, training batches"),
    ("valid", "clean", "Clean accuracy, validation images"),
    ("train", "clean", "Clean accuracy, training batches"),
)
"""Split, measure and title of each panel; those that the run measured are shown, up to `MOST_PANELS`."""
MOST_PANELS = 4
SETTINGS: Mapping[str, str] = {
    "epsilon": "Radius of each class",
    "beta": "Weight of the regulariser of each class",
    "robust_weight": "Weight of the robust term of each class",
}
"""Settings of classes that a schedule may change, and the titles of their panels."""


class Curves(NamedTuple):
    """What a run measured, the figures by name, and what to say about them."""

    epochs: pd.DataFrame
    drawings: Mapping[str, Drawing]
    sentences: Sequence[str]
    caption: str


def curves_of(run: Run) -> Curves | None:
    """The curves of a run; None before its first epoch."""
    epochs = run.epochs
    if epochs.empty:
        return None
    names = _names(epochs)
    chosen: dict[str, int | None] = {"valid": _kept(run, "best"), "valid-average": _kept(run, "best-average")}
    drawings: dict[str, Drawing] = {}
    marked = crowded = False
    for split, measure, title in PANELS:
        values = class_table(epochs, split, measure)
        if values.empty or len(drawings) == MOST_PANELS:
            continue
        counts = _counts(epochs, split, len(names))
        marked |= chosen.get(split) is not None
        crowded |= values.size > MOST_POINTS
        drawings[f"{split}-{measure}"] = class_curves(
            values,
            names,
            title,
            overall=_overall(values, counts),
            notes=_notes(values, counts),
            chosen=chosen.get(split),
        )
    for measure, title in SETTINGS.items():
        values = class_table(epochs, "train", measure)
        if not values.empty and float(np.nanmax(values.max(axis=1) - values.min(axis=1))) > 0:
            drawings[measure] = class_curves(values, names, title, share=False)
    return Curves(epochs, drawings, [_trained(run, epochs), *_averaging(run.events)], _caption(marked, crowded))


def _caption(marked: bool, crowded: bool) -> str:
    """What the panels show.

    Args:
        marked: one of them marks an epoch.
        crowded: one of them has so many classes and epochs that most lines are left out.
    """
    lines = (
        "Lines for the lowest and the highest class of the last epoch, where lines for all would be too many"
        if crowded
        else "A line for each class"
    )
    caption = f"{lines}; the shade spans the best and the worst class of every epoch."
    return f"{caption} The dashed upright line marks the epoch whose weights were selected." if marked else caption


def _names(epochs: pd.DataFrame) -> list[str]:
    """The class names by label."""
    table = epochs.drop_duplicates("label").set_index("label")["class"]
    return [str(table.get(label, label)) for label in range(int(epochs["label"].max()) + 1)]


def _kept(run: Run, which: Which) -> int | None:
    epoch = run.best_epoch(which)
    return None if epoch is None else epoch + 1


def _counts(epochs: pd.DataFrame, split: str, classes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(C,) images of each class in the split's last epoch."""
    rows = epochs[epochs["split"] == split]
    last = rows[rows["epoch"] == rows["epoch"].max()]
    counts = np.zeros(classes, dtype=np.int64)
    counts[last["label"].to_numpy()] = last["count"].to_numpy()
    return counts


def _overall(
    values: pd.DataFrame, counts: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(epochs,) the mean over images."""
    weights = counts[values.columns.to_numpy()]
    found: np.ndarray[Any, np.dtype[np.float64]] = values.fillna(0).to_numpy() @ weights / max(weights.sum(), 1)
    return found


def _notes(values: pd.DataFrame, counts: np.ndarray[Any, np.dtype[np.int64]]) -> list[str]:
    """The count and the interval of each class in the last epoch."""
    last = values.iloc[-1].reindex(range(len(counts))).fillna(0).to_numpy()
    low, high = class_intervals(ClassCounts(counts, np.rint(last * counts).astype(np.int64)))
    ends = zip(counts, low, high, strict=True)
    return [
        f"(n {formatting.count(int(n))}, 95\u00a0% interval {formatting.span(float(a), float(b))})" for n, a, b in ends
    ]


def _trained(run: Run, epochs: pd.DataFrame) -> str:
    done = int(epochs["epoch"].max()) + 1
    total = run.recipe.epochs
    of = (
        formatting.counted(done, "epoch") if done == total else f"{done} of {formatting.counted(total, 'epoch')} so far"
    )
    return f"Recipe {run.recipe.name}, {of}."


def _averaging(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the gate of the averaging let through."""
    gates = [event for event in events if event.get("event") == "fawa"]
    if not gates:
        return []
    admitted, judged = sum(bool(event["admitted"]) for event in gates), formatting.counted(len(gates), "epoch")
    if not admitted:
        return [f"The gate of the weight averaging judged {judged} and admitted none; the plain average was saved."]
    return [f"The gate of the weight averaging judged {judged} and admitted {formatting.count(admitted)}."]
