"""Logging to TensorBoard, which needs the extra ``tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from classwise.core.errors import ClasswiseError
from classwise.core.progress import NullProgress, Progress

INSTALL = "pip install -c constraints.txt -e '.[tensorboard]'"


class TensorBoard:
    """Write the scalars of each epoch for TensorBoard, and forward all calls to another listener.

    A resumed run writes further event files into the folder; TensorBoard merges them.

    Args:
        folder: the log directory.
        listener: the listener to forward to.

    Raises:
        ClasswiseError: if TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path, listener: Progress | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ClasswiseError(f"TensorBoard is not installed; run in the clone of classwise: {INSTALL}") from error
        self.listener = listener or NullProgress()
        self.writer = SummaryWriter(str(folder))

    def start(self, task: str, total: int) -> None:
        """Forward to the other listener."""
        self.listener.start(task, total)

    def advance(self, amount: int) -> None:
        """Forward to the other listener."""
        self.listener.advance(amount)

    def log(self, line: str) -> None:
        """Forward to the other listener."""
        self.listener.log(line)

    def log_metrics(self, epoch: int, values: Mapping[str, float]) -> None:
        """Write a scalar for each number of the epoch."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
