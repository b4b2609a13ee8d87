"""The folder of a robustness curve: its owner, its settings, and the brackets of an unfinished search."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.curve.brackets import Brackets
from classwise.auditing.curve.result import RADII, Curve
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.run import search_state
from classwise.auditing.run.folders import claim
from classwise.auditing.run.merging import SHARDS, check_images, check_shard, require_finished, same_hash, shard_folder
from classwise.auditing.run.partition import Shard
from classwise.core.distributed import ProcessGroup
from classwise.core.errors import ClasswiseError
from classwise.core.ownership import owned
from classwise.stats.counts import IntArray

SEARCH = "search.json"
"""The file with the settings of the search."""


def claimed(
    folder: Path, settings: Mapping[str, Any], stack: contextlib.ExitStack, *, resume: bool, merged: bool = False
) -> Curve | None:
    """Own a folder until the stack is closed, and load the curve in it if its search is finished.

    Args:
        folder: the folder; created if it does not exist.
        settings: the settings of the search, which those in the folder must equal.
        stack: closes the ownership.
        resume: continue the search in the folder.
        merged: whether the curve is merged of shards, which a new folder may then contain.

    Returns:
        The finished curve, or None.

    Raises:
        ClasswiseError: if the folder has other contents or settings, or is in use.
    """
    stack.enter_context(owned(folder))
    about = folder / SEARCH
    if (folder / RADII).is_file() and not about.is_file():
        raise ClasswiseError(f"{folder} contains a curve without its settings; give another --out")
    resumed = claim(
        folder,
        "curve",
        SEARCH,
        settings,
        resume=resume,
        read=lambda: search_state.read_settings(about),
        write=lambda: search_state.write_settings(about, settings),
        beside=[SHARDS] if merged else [],
    )
    return Curve.load(folder) if resumed and (folder / RADII).is_file() else None


def is_finished(folder: Path) -> bool:
    """Whether a folder contains the finished curve of a shard."""
    return (folder / SEARCH).is_file() and (folder / RADII).is_file()


def merge(
    folder: Path, count: int, settings: Mapping[str, Any], meta: Meta
) -> tuple[pd.DataFrame, Meta, dict[str, float]]:
    """The radii of all images from the curves of the shards in a folder, the completed metadata, and the duration.

    Args:
        folder: the folder of the curve.
        count: number of shards.
        settings: the settings of the search, which those of the shards must equal.
        meta: the metadata of the curve.

    Raises:
        ClasswiseError: if a shard has other settings or images.
        IncompleteError: if shards are not finished.
    """
    places = {shard: shard_folder(folder, shard) for shard in Shard.all(count)}
    for shard, place in places.items():
        if (place / SEARCH).is_file():
            check_shard(place, shard, search_state.read_settings(place / SEARCH), settings)
    require_finished(folder, {shard: is_finished(place) for shard, place in places.items()})
    curves = {place: Curve.load(place) for place in places.values()}
    check_images({place: curve.frame["index"].to_numpy() for place, curve in curves.items()}, places)
    data_hash = same_hash({place: curve.meta.data_hash for place, curve in curves.items()}, meta.data_hash)
    frame = pd.concat([curve.frame for curve in curves.values() if len(curve.frame)])
    frame = frame.sort_values("index", kind="stable").reset_index(drop=True)
    seconds = sum(float(curve.environment.get("seconds", 0.0)) for curve in curves.values())
    return (
        frame,
        dataclasses.replace(meta, data_hash=data_hash, images=len(frame)),
        {"shard_seconds": round(seconds, 3)},
    )


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
            rows = pd.concat([search_state.read(file)[0] for file in files])
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
            search_state.write(self.folder / name, frame, {})
            self._written()

    def remove(self) -> None:
        """Remove the files of a finished search."""
        if self.folder is not None:
            for file in self.folder.glob("part-*.parquet"):
                file.unlink()
            with contextlib.suppress(OSError):  # the folder has other files
                self.folder.rmdir()
