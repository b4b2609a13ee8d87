"""The history of a run: epoch rows, events, and the saved weights of the selected models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from classwise.core.storage import replacing, write_text
from classwise.models import save_weights
from classwise.training.classes import ClassSettings
from classwise.training.folder import Run, Which
from classwise.training.selection import AtShare, Selection, WithinError

SETTING_COLUMNS = ("epsilon", "step_size", "beta", "clean_weight", "robust_weight", "sampling", "logit_margin")
"""The class settings that the rows of the training split hold, a number each; ``target`` is a list per class."""


@dataclass
class History:
    """Epoch rows and events of a run, and the files that hold them.

    Args:
        run: the run folder.
        selection: the rule that selects the best epoch.
        epochs: epochs of the whole run.
        labels: labels of the validation split, int64 (N,), or None without one.
        metadata: what is saved beside weights.
        writes: whether this process writes files; every process of a distributed run keeps the same history.
        rows: a row per epoch, split and class.
        events: decisions of averaging and selection, and other events.
        best: the best score so far of each selected model.
        selection_states: the state of a rule that compares epochs image by image, per selected model.
    """

    run: Run
    selection: Selection
    epochs: int
    labels: Tensor | None
    metadata: Mapping[str, Any]
    writes: bool = True
    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    selection_states: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def log_event(self, epoch: int, **event: Any) -> None:
        """Append an event of an epoch."""
        self.events.append({"epoch": epoch, **event})

    def log_epoch(
        self,
        epoch: int,
        splits: Mapping[str, Mapping[str, Tensor]],
        settings: ClassSettings,
        class_names: Sequence[str],
    ) -> None:
        """Append the rows of an epoch, for each split as `epoch_rows` makes them."""
        for split, values in splits.items():
            self.rows += epoch_rows(epoch, split, values, settings, class_names)

    def save_model(self, which: Which, model: nn.Module, epoch: int, **metadata: Any) -> None:
        """Save the weights of a model."""
        if self.writes:
            metadata = {**self.metadata, "epoch": epoch, **metadata}
            save_weights(self.run.weights_file(which), model, metadata, checksum=True)

    def select(self, which: Which, model: nn.Module, values: Mapping[str, Tensor], epoch: int) -> None:
        """Save a model if the rule selects this epoch.

        Args:
            which: ``"best"`` or ``"best-average"``.
            model: the model of this epoch.
            values: what was measured on the validation split; if empty, the last epoch is the best.
            epoch: from 0.
        """
        if isinstance(self.selection, AtShare):
            selected = self.selection.chosen(epoch, self.epochs)
        elif isinstance(self.selection, WithinError):
            assert self.labels is not None
            state = self.selection_states.get(which, {})
            self.selection_states[which], selected = self.selection.judge(state, values["scores"], self.labels)
        else:
            score = self.selection(values["robust"], values["count"]) if values else torch.inf
            if score >= self.best.get(which, -torch.inf):
                self.best[which] = score
                self.save_model(which, model, epoch, score=score)
                self.log_event(epoch, event="selected", which=which, score=None if score == torch.inf else score)
            return
        if selected:
            self.save_model(which, model, epoch)
            self.log_event(epoch, event="selected", which=which, score=None)

    def write(self) -> None:
        """Write the rows and the events."""
        if self.writes:
            with replacing(self.run.epochs_file, checksum=True) as temporary:
                pd.DataFrame(self.rows).to_parquet(temporary, index=False)
            lines = "".join(json.dumps(event) + "\n" for event in self.events)
            write_text(self.run.events_file, lines, checksum=True)

    def scalars(self, epoch: int) -> dict[str, float]:
        """The numbers in the rows of an epoch, by split, quantity and class; those that are null are left out."""
        names = ("clean", "robust", *SETTING_COLUMNS)
        rows = [row for row in self.rows if row["epoch"] == epoch]
        found = {f"{row['split']}/{name}/{row['class']}": row[name] for row in rows for name in names}
        return {name: float(value) for name, value in found.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        """The rows, the events and the state of the selection, as a checkpoint holds them."""
        return {
            "rows": self.rows,
            "events": self.events,
            "best": self.best,
            "selection_states": self.selection_states,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the rows, the events and the state of the selection by those of a checkpoint."""
        self.rows, self.events = state["rows"], state["events"]
        self.best, self.selection_states = state["best"], state["selection_states"]


def epoch_rows(
    epoch: int, split: str, values: Mapping[str, Tensor], settings: ClassSettings, class_names: Sequence[str]
) -> list[dict[str, Any]]:
    """A row per class of what was measured on a split; what was not measured, or not set, is null.

    Args:
        epoch: from 0.
        split: ``"train"`` rows also hold the class settings.
        values: per-class numbers, (classes,) each; if empty, there are no rows.
        settings: the class settings of the epoch.
        class_names: of all classes.
    """
    if not values:
        return []
    empty: list[Any] = [None] * len(class_names)
    train = {name: getattr(settings, name) for name in (*SETTING_COLUMNS, "target")} if split == "train" else {}

    def column(tensor: Tensor | None) -> Sequence[float | None]:
        if tensor is None:
            return empty
        return [None if value != value else value for value in tensor.double().tolist()]  # NaN

    target = train.get("target")
    table = {
        "count": [int(value) for value in values["count"].tolist()],
        **{name: column(values.get(name)) for name in ("clean", "robust")},
        **{name: column(train.get(name)) for name in SETTING_COLUMNS},
        "target": empty if target is None else target.tolist(),
    }
    return [
        {"epoch": epoch, "split": split, "class": name, "label": label}
        | {key: cells[label] for key, cells in table.items()}
        for label, name in enumerate(class_names)
    ]


def epoch_line(
    epoch: int,
    epochs: int,
    splits: Mapping[str, Mapping[str, Tensor]],
    class_names: Sequence[str],
    event: Mapping[str, Any] | None,
    seconds: float,
) -> str:
    """The log line of an epoch: overall and worst-class robust accuracy per split, the event of averaging, the time.

    Args:
        epoch: from 0.
        epochs: of the whole run.
        splits: per-class numbers of each split.
        class_names: of all classes.
        event: the decision of the averager, or None.
        seconds: what the training steps of the epoch took.
    """
    parts = [f"epoch {epoch + 1}/{epochs}"]
    for split, values in splits.items():
        robust = values.get("robust")
        if robust is not None and not robust.isnan().all():
            weights = values["count"] / values["count"].sum()
            overall = 100 * float((robust.nan_to_num() * weights).sum())
            worst = int(robust.nan_to_num(nan=torch.inf).argmin())
            lowest = 100 * float(robust[worst])
            parts.append(f"{split} robust {overall:.1f} % (worst: {class_names[worst]} {lowest:.1f} %)")
    if event is not None:
        plain = ", no epoch admitted yet: plain average saved" if event["plain_average_kept"] else ""
        parts.append("average " + ("admitted" if event["admitted"] else "refused") + plain)
    return " | ".join([*parts, f"{seconds:.0f} s"])
