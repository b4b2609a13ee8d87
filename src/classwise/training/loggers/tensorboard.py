"""Logging to TensorBoard, which needs the extra ``tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from classwise.core.progress.listener import Progress
from classwise.core.settings.extras import require
from classwise.training.loggers.base import Logger


class TensorBoard(Logger):
    """Write the scalars of each epoch and the recipe for TensorBoard.

    TensorBoard stores no files: of an audit it has the accuracies and the paths of the files. A resumed run writes
    further event files into the log directory; TensorBoard merges them.

    Args:
        folder: the log directory.
        listener: the listener to forward to.

    Raises:
        ClasswiseError: if TensorBoard is not installed.
    """

    kind: ClassVar[str] = "tensorboard"

    def __init__(self, folder: str | Path, listener: Progress | None = None) -> None:
        super().__init__(listener)
        self.writer = require("torch.utils.tensorboard", "tensorboard", "tensorboard").SummaryWriter(str(folder))

    def open(self, folder: Path) -> None:
        """Do nothing: the log directory is the run."""

    def write_recipe(self, recipe: str) -> None:
        """Write the recipe as preformatted text."""
        self.writer.add_text("recipe", _preformatted(recipe))
        self.writer.flush()

    def write_metrics(self, epoch: int, values: Mapping[str, float]) -> None:
        """Write a scalar for each number of the epoch."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def write_audit(self, name: str, values: Mapping[str, float], files: Sequence[Path]) -> None:
        """Write a scalar for each accuracy, and the paths of the files as text."""
        for key, value in values.items():
            self.writer.add_scalar(f"audits/{name}/{key}", value, 0)
        self.writer.add_text(f"audits/{name}", _preformatted("\n".join(map(str, files))))
        self.writer.flush()

    def close(self, *, failed: bool = False) -> None:
        """Close the event file."""
        self.writer.close()


def _preformatted(text: str) -> str:
    """A block of code in Markdown."""
    return "".join(f"    {line}\n" for line in text.splitlines())
