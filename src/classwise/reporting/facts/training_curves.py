"""Training curves of an audited model: accuracy and settings of each class over the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from classwise.auditing.run.result import Audit
from classwise.auditing.training_run import run_of
from classwise.reporting import formatting
from classwise.reporting.figures.curves import MAX_POINTS, class_curves, class_table
from classwise.reporting.svg import Drawing
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals, lowest_interval
from classwise.stats.metrics import worst_class

if TYPE_CHECKING:
    from classwise.training.folder import Run, Which

PANELS: Sequence[tuple[str, str, str]] = (
    ("valid", "robust", "Robust accuracy, validation, %"),
    ("valid-average", "robust", "Robust accuracy, averaged weights, %"),
    ("train", "robust", "Robust accuracy, training batches, %"),
    ("valid", "clean", "Clean accuracy, validation, %"),
    ("train", "clean", "Clean accuracy, training batches, %"),
)
"""Split, measure and title of each panel; the first `MAX_PANELS` that the run measured are shown."""
MAX_PANELS = 4
UNBIASED = ("last", "three-quarters", "fourteen-fifteenths")
"""Selections of the epoch that do not use its accuracy."""
SETTINGS: Mapping[str, str] = {
    "epsilon": "Training radius, images in [0, 1]",
    "beta": "Weight of the regulariser",
    "robust_weight": "Weight of the robust loss",
}
"""Per-class settings that a schedule may change, with the titles of their panels."""


class Curves(NamedTuple):
    """The history of a run, its figures by name, and sentences and a caption about them."""

    epochs: pd.DataFrame
    drawings: Mapping[str, Drawing]
    sentences: Sequence[str]
    caption: str


def curves_of_audit(audit: Audit, run: Run | None = None) -> Curves | None:
    """Training curves of ``run``, default: the run whose folder contains the audit; None without an epoch."""
    source = run or run_of(audit)
    return None if source is None else curves_of(source)


def curves_of(run: Run) -> Curves | None:
    """Training curves of a run; None before its first epoch."""
    epochs = run.epochs
    if epochs.empty:
        return None
    names = _names(epochs)
    chosen: dict[str, int | None] = {"valid": _selected(run, "best"), "valid-average": _selected(run, "best-average")}
    drawings: dict[str, Drawing] = {}
    marked = crowded = False
    for split, measure, title in PANELS:
        values = class_table(epochs, split, measure)
        if values.empty or len(drawings) == MAX_PANELS:
            continue
        counts = _counts(epochs, split, len(names))
        marked |= chosen.get(split) is not None
        crowded |= values.size > MAX_POINTS
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
    return Curves(epochs, drawings, [_progress(run, epochs), *_averaging(run.events)], _caption(run, marked, crowded))


def _caption(run: Run, marked: bool, crowded: bool) -> str:
    """Caption of the panels.

    Args:
        run: the training run.
        marked: a panel marks the epoch of the selected weights.
        crowded: a panel shows only the worst and the best class because of its many classes and epochs.
    """
    lines = (
        "One line per class, or only the worst and the best class of the last epoch in panels with many classes"
        if crowded
        else "One line per class"
    )
    caption = f"{lines}; the shaded area spans the worst to the best class of each epoch."
    if not marked:
        return caption
    biased = "" if run.recipe.selection in UNBIASED else ", whose accuracy here is biased upwards by the selection"
    return f"{caption} The dashed vertical line marks the epoch of the selected weights{biased}."


def _names(epochs: pd.DataFrame) -> list[str]:
    """Class names by label."""
    table = epochs.drop_duplicates("label").set_index("label")["class"]
    return [str(table.get(label, label)) for label in range(int(epochs["label"].max()) + 1)]


def _selected(run: Run, which: Which) -> int | None:
    epoch = run.best_epoch(which)
    return None if epoch is None else epoch + 1


def _counts(epochs: pd.DataFrame, split: str, classes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Images per class (C,) in the last epoch of a split."""
    rows = epochs[epochs["split"] == split]
    last = rows[rows["epoch"] == rows["epoch"].max()]
    counts = np.zeros(classes, dtype=np.int64)
    counts[last["label"].to_numpy()] = last["count"].to_numpy()
    return counts


def _overall(
    values: pd.DataFrame, counts: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Mean over images per epoch (epochs,)."""
    weights = counts[values.columns.to_numpy()]
    overall: np.ndarray[Any, np.dtype[np.float64]] = values.fillna(0).to_numpy() @ weights / max(weights.sum(), 1)
    return overall


def _notes(values: pd.DataFrame, counts: np.ndarray[Any, np.dtype[np.int64]]) -> list[str]:
    """Number of images and interval of each class in the last epoch; of the worst, that of the lowest accuracy."""
    last = values.iloc[-1].reindex(range(len(counts))).fillna(0).to_numpy()
    sums = ClassCounts(counts, np.rint(last * counts).astype(np.int64))
    low, high = class_intervals(sums)
    texts = [f"95\u00a0% interval {formatting.span(float(a), float(b))}" for a, b in zip(low, high, strict=True)]
    if sums.present.any():
        lowest = formatting.span(*lowest_interval(sums))
        texts[worst_class(sums.accuracy).label] = f"{formatting.lowest_interval_name()} {lowest}"
    return [f"(n {formatting.count(int(n))}, {text})" for n, text in zip(counts, texts, strict=True)]


def _progress(run: Run, epochs: pd.DataFrame) -> str:
    done = int(epochs["epoch"].max()) + 1
    total = run.recipe.epochs
    progress = (
        formatting.counted(total, "epoch") if done == total else f"{done} of {formatting.counted(total, 'epoch')}"
    )
    return f"Recipe {run.recipe.name}, {progress}."


def _averaging(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Number of epochs that the gate of the weight averaging (FAWA) accepted."""
    gates = [event for event in events if event.get("event") == "fawa"]
    if not gates:
        return []
    accepted, epochs = sum(bool(event["admitted"]) for event in gates), formatting.counted(len(gates), "epoch")
    if not accepted:
        return [f"Weight averaging (FAWA) accepted 0 of {epochs}; the plain average was saved."]
    return [f"Weight averaging (FAWA) accepted {formatting.count(accepted)} of {epochs}."]
