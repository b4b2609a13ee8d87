"""What a run leaves for its reader: rows of its epochs, events, and the weights of the models that are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from classwise.models import save_weights
from classwise.storage import replacing, write_text
from classwise.training.folder import Run, Which
from classwise.training.selection import AtShare, Selection, WithinError


@dataclass
class Record:
    """What is known of a run so far, and the files that say it.

    Args:
        run: the folder.
        rule: which epoch is the best.
        epochs: of the whole run.
        labels: of the validation split, int64 (N,), or None without one.
        about: what is written beside weights.
        writes: whether this process writes; every process remembers all.
        rows: a row per epoch, split and class.
        events: what averaging and selection decided.
        best: the score of each kept model that a rule chose.
        judged: what a rule that compares epochs image by image remembers of each.
    """

    run: Run
    rule: Selection
    epochs: int
    labels: Tensor | None
    about: Mapping[str, Any]
    writes: bool = True
    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    judged: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def tell(self, epoch: int, **event: Any) -> None:
        """Note an event of an epoch."""
        self.events.append({"epoch": epoch, **event})

    def keep(self, which: Which, model: nn.Module, epoch: int, **more: Any) -> None:
        """Write the weights of a model."""
        if self.writes:
            save_weights(self.run.weights_file(which), model, {**self.about, "epoch": epoch, **more}, checksum=True)

    def select(self, which: Which, model: nn.Module, values: Mapping[str, Tensor], epoch: int) -> None:
        """Keep a model if it is the best of its name so far.

        Args:
            which: ``"best"`` or ``"best-average"``.
            model: the model of this epoch.
            values: what was measured on the validation split; none: the last epoch is the best.
            epoch: from 0.
        """
        if isinstance(self.rule, AtShare):
            if self.rule.chosen(epoch, self.epochs):
                self.keep(which, model, epoch)
                self.tell(epoch, event="selected", which=which, score=None)
            return
        if isinstance(self.rule, WithinError):
            assert self.labels is not None
            before = self.judged.get(which, {})
            self.judged[which], chosen = self.rule.judge(before, values["scores"], self.labels)
            if chosen:
                self.keep(which, model, epoch)
                self.tell(epoch, event="selected", which=which, score=None)
            return
        score = self.rule(values["robust"], values["count"]) if values else torch.inf
        if score >= self.best.get(which, -torch.inf):
            self.best[which] = score
            self.keep(which, model, epoch, score=score)
            self.tell(epoch, event="selected", which=which, score=None if score == torch.inf else score)

    def write(self) -> None:
        """Write the rows and the events."""
        if self.writes:
            with replacing(self.run.epochs_file, checksum=True) as temporary:
                pd.DataFrame(self.rows).to_parquet(temporary, index=False)
            lines = "".join(json.dumps(event) + "\n" for event in self.events)
            write_text(self.run.events_file, lines, checksum=True)

    def of_epoch(self, epoch: int) -> list[dict[str, Any]]:
        """The rows of an epoch."""
        return [row for row in self.rows if row["epoch"] == epoch]
