"""The folder of a search: who may write into it, and the state of an unfinished search."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from classwise.auditing import search_state
from classwise.auditing.folders import claim
from classwise.auditing.worst_class.ledger import Ledger
from classwise.core.ownership import owned
from classwise.stats.counts import FloatArray

SEARCH = "search.json"
"""The settings of a search, in its folder,"""
ROUNDS = "rounds.parquet"
"""and what it has found."""


def claimed(folder: Path, settings: Mapping[str, Any], stack: contextlib.ExitStack, *, resume: bool) -> SavedSearch:
    """Own the folder until the stack is closed.

    Raises:
        ClasswiseError: if the folder holds something else, or is in use.
    """
    stack.enter_context(owned(folder))
    about = folder / SEARCH
    claim(
        folder,
        "worst-class search",
        SEARCH,
        settings,
        resume=resume,
        read=lambda: search_state.read_settings(about),
        write=lambda: search_state.write_settings(about, settings),
    )
    return SavedSearch(folder / ROUNDS)


class SavedSearch:
    """A search on disk: what is known of every image, and what was found in each round.

    Args:
        path: the file, or None.

    Attributes:
        table: a row for each image in the order of the data, or None before the first pass.
        rounds: for each round the class, the count and the successes of its draws and of its escalations.
        seen: of each attack: images, successes, passes.
        seconds: how long all of it took.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.table: pd.DataFrame | None = None
        self.rounds: list[dict[str, list[list[int]]]] = []
        self.seen: list[list[float]] = []
        self.seconds = 0.0
        if path is not None and path.is_file():
            self.table, facts = search_state.read(path)
            self.rounds, self.seen, self.seconds = facts["rounds"], facts["seen"], facts["seconds"]

    def write(self, ledger: Ledger, seen: FloatArray, seconds: float) -> None:
        """Save the search, whole or not at all."""
        if self.path is not None:
            facts = {"rounds": self.rounds, "seen": seen.tolist(), "seconds": seconds}
            search_state.write(self.path, ledger.table(), facts)
