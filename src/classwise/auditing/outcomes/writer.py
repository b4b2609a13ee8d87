"""The writer of outcomes: writes finished rows in blocks, and reads the rows of an interrupted audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from classwise.auditing.outcomes import artifacts
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.artifacts import Artifacts
from classwise.auditing.outcomes.files import Columns
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.stats.counts import IntArray

BLOCK_ROWS = 2048
"""A file is written when this many rows are waiting."""
BLOCK_SECONDS = 30.0
"""A file is also written when the oldest row has waited this long, in seconds."""

Tensors = Mapping[str, tuple[IntArray, NDArray[Any]]]
"""Tensors to save by kind: image indices (N,) and rows (N, ...)."""


class OutcomeWriter:
    """Collects the rows of an audit in memory and, with a folder, on disk.

    Args:
        folder: the audit's folder, or None; the rows of its files count as done.
        meta: the metadata of new files; it may be replaced during the audit.
        rank: rank of this writer among those that write into the folder concurrently.
        world_size: number of these writers; each uses file numbers of its own.
        written: called after each block.
    """

    def __init__(
        self,
        folder: Path | None,
        meta: Meta,
        rank: int = 0,
        world_size: int = 1,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.meta = meta
        self.artifacts = Artifacts(folder)
        self._done: dict[str, list[pd.DataFrame]] = {label: [] for label in meta.attacks}
        self._waiting: list[tuple[Columns, Tensors]] = []
        self._since = time.monotonic()
        self._next, self._stride, self._written = rank, world_size, written
        if folder is None:
            return
        artifacts.remove_orphans(folder)
        for path in outcome_files.listed(folder / "outcomes"):
            frame, _ = outcome_files.read(path)
            self._next = int(path.stem.removeprefix("part-")) + 1 + rank
            for label, rows in frame.groupby("attack", sort=False):
                self._done[str(label)].append(rows)

    def add(self, rows: Columns, tensors: Tensors | None = None) -> None:
        """Add the rows of images under one attack, and their tensors to save."""
        if not len(rows["index"]):
            return
        if self._waiting and self._waiting[0][0]["attack"][0] != rows["attack"][0]:
            self.flush()
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append((rows, tensors or {}))
        waiting = sum(len(block["index"]) for block, _ in self._waiting)
        if waiting >= BLOCK_ROWS or time.monotonic() - self._since > BLOCK_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows as one file, after their tensors.

        Raises:
            ClasswiseError: if the folder was removed, or cannot be written.
        """
        if not self._waiting:
            return
        if self.folder is not None and not self.folder.is_dir():
            raise ClasswiseError(f"{self.folder} was removed during the audit; start the audit again")
        rows = outcome_files.filled([block for block, _ in self._waiting], self.meta)
        label = str(rows["attack"].iloc[0])
        for kind in dict.fromkeys(kind for _, tensors in self._waiting for kind in tensors):
            blocks = [tensors[kind] for _, tensors in self._waiting if kind in tensors]
            index, values = (np.concatenate(columns) for columns in zip(*blocks, strict=True))
            if self.folder is None:
                self.artifacts.add(kind, label, index, values)
            else:
                artifacts.write(self.folder, kind, label, self._next, index, values)
        if self.folder is not None:
            outcome_files.write(self.folder / "outcomes" / outcome_files.name(self._next), rows, self.meta)
        self._waiting = []  # first, as a signal may stop the process here: rows are never written to two files
        self._done[label].append(rows)
        self._next += self._stride
        self._written()

    def rows(self, label: str, index: IntArray) -> pd.DataFrame:
        """The existing rows of one attack for the images ``index``, in their order."""
        self.flush()
        done = self._done[label]
        if not done:
            return self._empty.set_index("index", drop=False)
        done[:] = [rows] = [pd.concat(done) if len(done) > 1 else done[0]]
        places = pd.Index(rows["index"]).get_indexer(index)
        return rows.take(places[places >= 0]).set_index("index", drop=False)

    def merge(self, others: Iterable[OutcomeWriter]) -> None:
        """Add the rows and tensors that other writers have in memory."""
        for other in others:
            for label, blocks in other._done.items():
                self._done[label] += blocks
            self.artifacts.merge(other.artifacts)

    def count(self) -> int:
        """Number of rows that are written, or in memory without a folder."""
        return sum(len(rows) for blocks in self._done.values() for rows in blocks)

    def outcomes(self) -> Outcomes:
        """The table of all rows."""
        self.flush()
        blocks = [rows for blocks in self._done.values() for rows in blocks]
        return Outcomes(pd.concat(blocks) if blocks else self._empty, self.meta)

    @cached_property
    def _empty(self) -> pd.DataFrame:
        """The table without rows."""
        return outcome_files.typed(pd.DataFrame(columns=[*outcome_files.COLUMNS, *self.meta.groups]), self.meta)
