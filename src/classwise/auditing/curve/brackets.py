"""The brackets of a bisection: for each image an interval that contains its robust radius; and their files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from classwise.core.distributed import ProcessGroup
from classwise.core.errors import ClasswiseError
from classwise.core.storage import CHECKSUMS
from classwise.core.tables import facts_of, read_table, write_table
from classwise.stats.counts import BoolArray, FloatArray, IntArray

_ADVICE = "remove it and resume, which repeats this part of the search"


class Brackets:
    """The brackets of the images of a piece, and the cost of the search so far; arrays of (N,).

    Args:
        wrong: whether each clean image is misclassified, (N,).

    Attributes:
        low: the largest radius at which every attack failed, 0 if there is none.
        high: the smallest radius at which an attack succeeded, infinity if there is none.
        attack: the position in the suite of the attack that succeeded at ``high``; -1 if none did.
        probes: the number of radii at which the image was attacked.
        forwards, backwards: the number of passes.
    """

    def __init__(self, wrong: BoolArray) -> None:
        count = len(wrong)
        self.low, self.high = np.zeros(count), np.where(wrong, 0.0, np.inf)
        self.attack = np.full(count, -1)
        self.probes, self.backwards = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.forwards = np.ones(count, dtype=np.int64)

    @staticmethod
    def of(frame: pd.DataFrame) -> Brackets:
        """The brackets with the `columns` of a frame, in its order."""
        brackets = Brackets(np.zeros(len(frame), dtype=np.bool_))
        for name in brackets.columns():
            setattr(brackets, name, frame[name].to_numpy(copy=True))
        return brackets

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """All arrays by name."""
        return {name: getattr(self, name) for name in ("low", "high", "attack", "probes", "forwards", "backwards")}

    def probe(self, width: float, highest: float) -> FloatArray:
        """The next radius of each image, (N,): first ``highest``, then the midpoint of its bracket; NaN if finished.

        Args:
            width: the width of a finished bracket.
            highest: the largest radius.
        """
        untried = np.isinf(self.high) & (self.low == 0)
        open_ended = np.isinf(self.high) & ~untried
        wide = ~open_ended & (untried | (self.high - self.low > width * (1 + 1e-6)))
        finite = np.where(np.isinf(self.high), 0.0, self.high)
        return np.where(wide, np.where(untried, highest, (self.low + finite) / 2), np.nan)

    def set_robust(self, rows: IntArray, radius: FloatArray) -> None:
        """Update the brackets of images on which every attack failed.

        Args:
            rows: the images.
            radius: the radius of the attacks, one for each of ``rows``.
        """
        self.low[rows] = np.maximum(self.low[rows], radius)

    def set_adversarial(self, rows: IntArray, radius: FloatArray, attack: int) -> None:
        """Update the brackets of images on which an attack succeeded.

        If every attack failed at a larger radius, that failure was due to chance: the lower end is reset to 0.

        Args:
            rows: the images.
            radius: the distance of the adversarial example, one for each of ``rows``.
            attack: the position of the attack in the suite.
        """
        nearer = radius < self.high[rows]
        rows, radius = rows[nearer], radius[nearer]
        self.high[rows], self.attack[rows] = radius, attack
        self.low[rows] = np.where(radius <= self.low[rows], 0.0, self.low[rows])


class SavedBrackets:
    """The brackets of an unfinished search on disk: a file for each piece of the data and each process.

    The search of an image depends on its own bracket only, so it can be resumed by any number of processes.
    """

    def __init__(
        self, folder: Path | None, processes: ProcessGroup, written: Callable[[], None] = lambda: None
    ) -> None:
        self.folder, self.processes, self._written = None if folder is None else folder / "rounds", processes, written
        self._rows = pd.DataFrame()
        if self.folder is not None and (files := sorted(self.folder.glob("part-*.parquet"))):
            rows = pd.concat([_saved(file) for file in files])
            # An image may be in files of several runs with different numbers of processes: use its latest state.
            rows = rows.sort_values("probes", kind="stable").drop_duplicates("index", keep="last")
            self._rows = rows.set_index("index")

    def rows(self, index: IntArray, label: IntArray) -> pd.DataFrame:
        """The saved brackets among some images, by image number.

        Args:
            index: the image numbers.
            label: their labels.

        Raises:
            ClasswiseError: if the saved labels differ.
        """
        if self._rows.empty:
            return self._rows
        rows = self._rows.loc[np.isin(self._rows.index, index)]
        if not np.array_equal(pd.Series(label, index)[rows.index].to_numpy(), rows["label"].to_numpy()):
            raise ClasswiseError(
                f"{self.folder} contains a search on other images: the labels differ; give another folder"
            )
        return rows.drop(columns="label")

    def write(self, piece: int, index: IntArray, label: IntArray, brackets: Brackets) -> None:
        """Save the brackets of a piece atomically."""
        if self.folder is not None:
            name = f"part-{self.processes.world_size:03d}-{self.processes.rank:03d}-{piece:05d}.parquet"
            frame = pd.DataFrame({"index": index, "label": label, **brackets.columns()})
            write_table(self.folder / name, frame, "curve", {})
            self._written()

    def remove(self) -> None:
        """Remove the files of a finished search."""
        if self.folder is not None:
            for file in (*self.folder.glob("part-*.parquet"), self.folder / CHECKSUMS):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder has other files
                self.folder.rmdir()


def _saved(file: Path) -> pd.DataFrame:
    """The table in a file of brackets."""
    table = read_table(file, _ADVICE, damaged=_ADVICE)
    facts_of(table, "curve", file, _ADVICE)  # checks the schema version
    frame: pd.DataFrame = table.to_pandas()
    return frame
