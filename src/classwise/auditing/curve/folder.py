"""The folder of a robustness curve: who may write into it, and the brackets of an unfinished search."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing import search_state
from classwise.auditing.curve.brackets import Brackets
from classwise.auditing.curve.result import RADII, Curve
from classwise.auditing.folders import claim
from classwise.core.distributed import ProcessGroup
from classwise.core.errors import ClasswiseError
from classwise.core.ownership import owned
from classwise.stats.counts import IntArray

SEARCH = "search.json"
"""The settings of a search, in its folder."""


def claimed(folder: Path, settings: Mapping[str, Any], stack: contextlib.ExitStack, *, resume: bool) -> Curve | None:
    """Own the folder until the stack is closed; the curve in it, if that is finished.

    Raises:
        ClasswiseError: if the folder holds something else, or is in use.
    """
    stack.enter_context(owned(folder))
    about = folder / SEARCH
    if (folder / RADII).is_file() and not about.is_file():
        raise ClasswiseError(f"{folder} holds a curve without its settings; give another --out")
    again = claim(
        folder,
        "curve",
        SEARCH,
        settings,
        resume=resume,
        read=lambda: search_state.read_settings(about),
        write=lambda: search_state.write_settings(about, settings),
    )
    return Curve.load(folder) if again and (folder / RADII).is_file() else None


class SavedBrackets:
    """The brackets of an unfinished search on disk: a file for each piece of the data and each process.

    An image's search depends on its own bracket alone, so searches may be resumed by any number of processes.
    """

    def __init__(self, folder: Path | None, processes: ProcessGroup) -> None:
        self.folder, self.processes = None if folder is None else folder / "rounds", processes
        self._rows = pd.DataFrame()
        if self.folder is not None and (files := sorted(self.folder.glob("part-*.parquet"))):
            rows = pd.concat([search_state.read(file)[0] for file in files])
            # Of an image that several files hold, as they are of runs of several processes, the latest state.
            rows = rows.sort_values("probes", kind="stable").drop_duplicates("index", keep="last")
            self._rows = rows.set_index("index")

    def rows(self, index: IntArray, label: IntArray) -> pd.DataFrame:
        """The brackets of those of some images that are saved, by image number.

        Raises:
            ClasswiseError: if they are of images with other labels.
        """
        if self._rows.empty:
            return self._rows
        rows = self._rows.loc[np.isin(self._rows.index, index)]
        if not np.array_equal(pd.Series(label, index)[rows.index].to_numpy(), rows["label"].to_numpy()):
            raise ClasswiseError(
                f"{self.folder} holds a search on other images: their labels differ; give another folder"
            )
        return rows.drop(columns="label")

    def write(self, piece: int, index: IntArray, label: IntArray, found: Brackets) -> None:
        """Save the brackets of a piece, whole or not at all."""
        if self.folder is not None:
            name = f"part-{self.processes.world_size:03d}-{self.processes.rank:03d}-{piece:05d}.parquet"
            frame = pd.DataFrame({"index": index, "label": label, **found.columns()})
            search_state.write(self.folder / name, frame, {})

    def remove(self) -> None:
        """Remove what a finished search no longer needs."""
        if self.folder is not None:
            for file in self.folder.glob("part-*.parquet"):
                file.unlink()
            with contextlib.suppress(OSError):  # somebody has put a file of theirs there
                self.folder.rmdir()
