"""The folder of a worst-class search: its owner, its settings, and the state of an unfinished search."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from classwise.auditing.run import search_state
from classwise.auditing.run.folders import claim
from classwise.auditing.worst_class.ledger import Ledger
from classwise.core.ownership import owned
from classwise.stats.counts import FloatArray

SEARCH = "search.json"
"""The file with the settings of the search."""
ROUNDS = "rounds.parquet"
"""The file with the state of the search."""


def claimed(folder: Path, settings: Mapping[str, Any], stack: contextlib.ExitStack, *, resume: bool) -> SavedSearch:
    """Own a folder until the stack is closed, and load the search in it.

    Args:
        folder: the folder; created if it does not exist.
        settings: the settings of the search, which those in the folder must equal.
        stack: closes the ownership.
        resume: continue the search in the folder.

    Raises:
        ClasswiseError: if the folder has other contents or settings, or is in use.
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
            self.table, facts = search_state.read(path)
            self.rounds, self.totals = facts["rounds"], facts["totals"]
            self.environment = {"seconds": facts["seconds"], **facts.get("environment", {})}

    def write(self, ledger: Ledger, totals: FloatArray, environment: Mapping[str, Any]) -> None:
        """Save the state of the search atomically."""
        self.environment = environment
        if self.path is not None:
            facts = {"rounds": self.rounds, "totals": totals.tolist(), "environment": environment}
            facts["seconds"] = environment["seconds"]
            search_state.write(self.path, ledger.table(), facts)
