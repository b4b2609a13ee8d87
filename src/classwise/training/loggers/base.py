"""`Logger`: the interface of an experiment tracker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from classwise.core.files.storage import read_json, write_json
from classwise.core.progress.listener import NullProgress, Progress, expect

RUNS = "tracking.json"
"""The file of a run folder with the ids of its runs in the trackers, so that resumed trainings and audits join them."""


class Logger(ABC):
    """A progress listener that sends metrics, recipes and files to an experiment tracker.

    It forwards all calls to another listener, which may be a logger too. It is a context manager; leaving it closes the
    tracker's run. A subclass implements ``open``, ``write_recipe``, ``write_metrics``, ``write_audit`` and ``close``.

    Args:
        listener: the listener to forward to.
    """

    kind: ClassVar[str]

    def __init__(self, listener: Progress | None = None) -> None:
        self.listener = listener or NullProgress()

    def start(self, task: str, total: int) -> None:
        """Forward to the other listener."""
        self.listener.start(task, total)

    def advance(self, amount: int) -> None:
        """Forward to the other listener."""
        self.listener.advance(amount)

    def expect(self, low: float, high: float) -> None:
        """Forward to the other listener."""
        expect(self.listener, low, high)

    def log(self, line: str) -> None:
        """Forward to the other listener."""
        self.listener.log(line)

    def log_recipe(self, folder: Path, recipe: str) -> None:
        """Begin to log a training, or continue it.

        Args:
            folder: the run folder.
            recipe: the complete recipe, as YAML.
        """
        if isinstance(self.listener, Logger):
            self.listener.log_recipe(folder, recipe)
        self.open(folder)
        self.write_recipe(recipe)

    def log_metrics(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log the metrics of an epoch (counted from 0) by name, such as ``valid/robust/cat``."""
        if isinstance(self.listener, Logger):
            self.listener.log_metrics(epoch, values)
        self.write_metrics(epoch, values)

    def log_audit(self, folder: Path, name: str, values: Mapping[str, float], files: Sequence[Path]) -> None:
        """Log an audit; `classwise.reporting.tracking.log_audit` calls it.

        Args:
            folder: the run folder of the audited model; without one, the folder of the audit.
            name: name of the audit.
            values: accuracies (fractions) by name, such as ``all/cat``.
            files: the page and the files of the outcomes.
        """
        if isinstance(self.listener, Logger):
            self.listener.log_audit(folder, name, values, files)
        self.open(folder)
        self.write_audit(name, values, files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Open the tracker's run of a folder, unless it is open."""

    @abstractmethod
    def write_recipe(self, recipe: str) -> None:
        """Send a recipe."""

    @abstractmethod
    def write_metrics(self, epoch: int, values: Mapping[str, float]) -> None:
        """Send the metrics of an epoch."""

    @abstractmethod
    def write_audit(self, name: str, values: Mapping[str, float], files: Sequence[Path]) -> None:
        """Send the accuracies and the files of an audit."""

    @abstractmethod
    def close(self, *, failed: bool = False) -> None:
        """Close the tracker's run."""


def joined_run(folder: Path, tracker: str, start: Callable[[str | None], str]) -> None:
    """Start a run of a tracker, or continue that of the folder, whose id the folder stores.

    Args:
        folder: the folder.
        tracker: the tracker, and the place of its runs.
        start: starts the run with an id, or a new run for None, and returns its id.

    Raises:
        ClasswiseError: if the file with the ids is damaged.
    """
    file = folder / RUNS
    advice = "delete it to start new runs in the trackers"
    known = read_json(file, advice, kind=dict[str, str]) if file.exists() else {}
    saved = known.get(tracker)
    run = start(saved)
    if saved is None:
        write_json(file, known | {tracker: run}, indent=2)
