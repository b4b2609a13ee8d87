"""The state of every image in a worst-class search, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.outcomes.table import CLEAN
from classwise.core.errors import ClasswiseError
from classwise.core.tables import facts_of, read_table, write_table
from classwise.data.images import Images
from classwise.stats.counts import BoolArray, FloatArray, IntArray

_ADVICE = "remove it and resume, which repeats this part of the search"


@dataclass(frozen=True)
class SurvivorCounts:
    """Counts by class, (C,) each.

    Attributes:
        images: all images.
        clean: images that are correctly classified without an attack.
        survivors: images that survive the first attack.
    """

    images: IntArray
    clean: IntArray
    survivors: IntArray


@dataclass
class Ledger:
    """The state of every image, by its position in the data.

    Columns: ``stage`` (-1: no attack succeeded so far, 0: the clean image is misclassified, k: attack k succeeded),
    ``settled`` (1 if the verdict under the whole suite is known), ``forwards`` and ``backwards`` (passes).
    """

    index: list[IntArray] = field(default_factory=list)
    label: list[IntArray] = field(default_factory=list)
    _columns: dict[str, IntArray] = field(default_factory=dict)

    def add(self, piece: Images) -> IntArray:
        """Add the images of a piece; returns their positions."""
        start = sum(len(block) for block in self.index)
        self.index.append(piece.index.cpu().numpy())
        self.label.append(piece.y.cpu().numpy())
        for name, value in (("stage", -1), ("settled", 0), ("forwards", 0), ("backwards", 0)):
            before = self._columns.get(name, np.empty(0, dtype=np.int64))
            self._columns[name] = np.concatenate([before, np.full(len(piece), value)])
        return np.arange(start, start + len(piece))

    def __getitem__(self, name: str) -> IntArray:
        return self._columns[name]

    def table(self) -> pd.DataFrame:
        """The whole state, a row for each image in the order of the data."""
        columns = {"index": np.concatenate(self.index), "label": np.concatenate(self.label)}
        return pd.DataFrame(columns | self._columns)

    def restore(self, places: IntArray, saved: pd.DataFrame) -> None:
        """Restore the saved state of the images of the last piece.

        Args:
            places: the positions of these images.
            saved: a table as `table` returns it.

        Raises:
            ClasswiseError: if the saved images differ.
        """
        rows = saved.iloc[places[0] : places[-1] + 1]
        for name, values in (("index", self.index[-1]), ("label", self.label[-1])):
            if not np.array_equal(rows[name].to_numpy(), values):
                raise ClasswiseError("the folder contains a search on other images; give another folder")
        for name, column in self._columns.items():
            column[places] = rows[name].to_numpy()

    def counts(self, mask: BoolArray, classes: int) -> IntArray:
        """Count the images of each class, (C,), for which a mask over all images is true."""
        return np.bincount(np.concatenate(self.label)[mask], minlength=classes)

    def frame(self, attacks: list[str]) -> pd.DataFrame:
        """The table of `WorstClass.images`, sorted by image number."""
        names = np.array([CLEAN, *attacks, None], dtype=object)  # stage -1 selects the last: no attack succeeded
        table = pd.DataFrame(
            {
                "index": np.concatenate(self.index),
                "label": np.concatenate(self.label),
                "first_success": pd.array(names[self["stage"]], dtype="string"),
                "settled": self["settled"] > 0,
                "forwards": self["forwards"],
                "backwards": self["backwards"],
            }
        )
        return table.sort_values("index", kind="stable").reset_index(drop=True)


class SavedSearch:
    """The state of a search on disk.

    Args:
        path: the file; None: nothing is saved.

    Attributes:
        table: a row for each image in the order of the data; None before the first pass.
        rounds: the samples and the escalations of each round: class, number of images, number of successes.
        totals: for each attack the number of images, successes and passes.
        environment: that of all runs so far, with their duration in seconds; empty before the first pass.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.table: pd.DataFrame | None = None
        self.rounds: list[dict[str, list[list[int]]]] = []
        self.totals: list[list[float]] = []
        self.environment: Mapping[str, Any] = {}
        if path is not None and path.is_file():
            table = read_table(path, _ADVICE, damaged=_ADVICE)
            facts = facts_of(table, "worst-class search", path, _ADVICE)
            self.table, self.rounds, self.totals = table.to_pandas(), facts["rounds"], facts["totals"]
            self.environment = {"seconds": facts.get("seconds"), **facts.get("environment", {})}  # as of older ones

    def write(self, ledger: Ledger, totals: FloatArray, environment: Mapping[str, Any]) -> None:
        """Save the state of the search atomically."""
        self.environment = environment
        if self.path is not None:
            facts = {"rounds": self.rounds, "totals": totals.tolist(), "environment": environment}
            write_table(self.path, ledger.table(), "worst-class search", facts)
