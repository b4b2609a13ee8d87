"""The history of a run: the table of the epochs, the events, and the selection of the saved models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from classwise.core.files.json_values import json_text
from classwise.core.files.storage import replacing, write_text
from classwise.core.rounding import in_percent
from classwise.models import save_weights
from classwise.training.background import BackgroundWriter
from classwise.training.classes.signals import ClassSettings
from classwise.training.folder import Run, Which
from classwise.training.selection import AtFraction, Selection, WithinError

SETTING_COLUMNS = ("epsilon", "step_size", "beta", "clean_weight", "robust_weight", "sampling", "logit_margin")
"""The class settings in the rows of the training split, one number each; ``target`` is a list per class."""
FURTHER_COLUMNS = ("logit_adjustment", "clean_temperature", "robust_temperature")
"""Further columns, of runs that set them."""


@dataclass
class History:
    """The table of the epochs and the events of a run, and their files.

    Args:
        run: the run folder.
        selection: the rule that selects the best epoch.
        epochs: the number of epochs of the run.
        labels: labels of the validation split, int64 (N,), or None.
        metadata: metadata of the saved weights.
        writes: whether this process writes files; all processes of a distributed run have the same history.
        writer: writes the files.
        rows: a row per epoch, split and class.
        events: decisions of averaging and selection, and other events.
        best: the best score so far of each selected model.
        selection_states: the state of the rule `WithinError`, per selected model.
    """

    run: Run
    selection: Selection
    epochs: int
    labels: Tensor | None
    metadata: Mapping[str, Any]
    writes: bool = True
    writer: BackgroundWriter = field(default_factory=lambda: BackgroundWriter(torch.device("cpu")))
    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    selection_states: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def log_event(self, epoch: int, **event: Any) -> None:
        """Append an event of an epoch."""
        self.events.append({"epoch": epoch, **event})

    def save_model(self, which: Which, model: nn.Module, epoch: int, **metadata: Any) -> None:
        """Save the weights of a model."""
        if self.writes:
            metadata = {**self.metadata, "epoch": epoch, **metadata}
            path = self.run.weights_file(which)
            self.writer.write(
                model.state_dict(), lambda tensors: save_weights(path, model, metadata, checksum=True, tensors=tensors)
            )

    def select(self, which: Which, model: nn.Module, values: Mapping[str, Tensor], epoch: int) -> None:
        """Save a model if the rule selects this epoch.

        Args:
            which: ``"best"`` or ``"best-average"``.
            model: the model of this epoch.
            values: the class means on the validation split; if empty, the last epoch is the best.
            epoch: from 0.
        """
        if isinstance(self.selection, AtFraction):
            selected = self.selection.selects(epoch, self.epochs)
        elif isinstance(self.selection, WithinError):
            assert self.labels is not None
            state = self.selection_states.get(which, {})
            self.selection_states[which], selected = self.selection.select(state, values["scores"], self.labels)
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
        """Write the table of the epochs and the events."""
        if self.writes:
            rows, events = list(self.rows), list(self.events)
            self.writer.write({}, lambda _: _write(self.run, rows, events))

    def scalars(self, epoch: int) -> dict[str, float]:
        """Return the numbers of an epoch by split, quantity and class, without null values."""
        names = ("clean", "robust", *SETTING_COLUMNS, *FURTHER_COLUMNS)
        rows = [row for row in self.rows if row["epoch"] == epoch]
        values = {f"{row['split']}/{name}/{row['class']}": row.get(name) for row in rows for name in names}
        return {name: float(value) for name, value in values.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, the events and the state of the selection, for a checkpoint."""
        return {
            "rows": list(self.rows),
            "events": list(self.events),
            "best": dict(self.best),
            "selection_states": self.selection_states,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the rows, the events and the state of the selection from a checkpoint."""
        self.rows, self.events = state["rows"], state["events"]
        self.best, self.selection_states = state["best"], state["selection_states"]


def _write(run: Run, rows: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
    with replacing(run.epochs_file, checksum=True) as temporary:
        pd.DataFrame(rows).to_parquet(temporary, index=False)
    lines = "".join(json_text(event) + "\n" for event in events)
    write_text(run.events_file, lines, checksum=True)


def epoch_rows(
    epoch: int, split: str, values: Mapping[str, Tensor], settings: ClassSettings, class_names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row per class for a split; quantities that were not measured or set are null.

    Args:
        epoch: from 0.
        split: the split; rows of ``"train"`` include the class settings.
        values: per-class numbers, (C,) each; if empty, there are no rows.
        settings: the class settings of the epoch.
        class_names: the names of all classes.
    """
    if not values:
        return []
    empty: list[Any] = [None] * len(class_names)
    further = [name for name in FURTHER_COLUMNS if getattr(settings, name) is not None]
    columns = (*SETTING_COLUMNS, *further)
    train = {name: getattr(settings, name) for name in (*columns, "target")} if split == "train" else {}

    def column(tensor: Tensor | None) -> Sequence[float | None]:
        if tensor is None:
            return empty
        return [None if value != value else value for value in tensor.double().tolist()]  # NaN

    target = train.get("target")
    table = {
        "count": [int(value) for value in values["count"].tolist()],
        **{name: column(values.get(name)) for name in ("clean", "robust")},
        **{name: column(train.get(name)) for name in columns},
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
    """Return the log line of an epoch: overall and worst-class robust accuracy per split, averaging event, time.

    Args:
        epoch: from 0.
        epochs: the number of epochs of the run.
        splits: per-class numbers of each split.
        class_names: the names of all classes.
        event: the decision of the averager, or None.
        seconds: the time of the training steps of the epoch.
    """
    parts = [f"epoch {epoch + 1}/{epochs}"]
    for split, values in splits.items():
        robust = values.get("robust")
        if robust is not None and not robust.isnan().all():
            weights = values["count"] / values["count"].sum()
            overall = float((robust.nan_to_num() * weights).sum())
            worst = int(robust.nan_to_num(nan=torch.inf).argmin())
            lowest = float(robust[worst])
            parts.append(
                f"{split} robust {in_percent(overall):.1f} % (worst: {class_names[worst]} {in_percent(lowest):.1f} %)"
            )
    if event is not None:
        plain = ", no epoch admitted yet: average of all epochs saved" if event["plain_average_saved"] else ""
        parts.append("average " + ("admitted" if event["admitted"] else "refused") + plain)
    return " | ".join([*parts, f"{seconds:.0f} s"])
