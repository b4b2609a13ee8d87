"""`Executor`: the interface of the places where tasks run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from classwise.core.errors import ClasswiseError


class Finished(NamedTuple):
    """A task that has ended.

    Attributes:
        folder: the folder of the task.
        status: the exit status of its first call that failed, or 0; negative: the number of the signal that killed
            a process of the task.
    """

    folder: Path
    status: int


def check_numbers(workers: int | None, gpus: int) -> None:
    """Check the number of tasks at once, None for as many as possible, and the GPUs of each.

    Raises:
        ClasswiseError: if a number is out of its range.
    """
    if workers is not None and workers < 1:
        raise ClasswiseError(f"workers {workers} must be at least 1")
    if gpus < 0:
        raise ClasswiseError(f"gpus {gpus} must not be negative")


class Executor(ABC):
    """Runs tasks, several at once."""

    def check(self) -> None:  # noqa: B027  # most executors have nothing to check
        """Check that tasks can run, before the folders of tasks are written; at most a few seconds.

        Raises:
            ClasswiseError: if the cluster cannot be reached, or lacks the resources of a task.
        """

    @abstractmethod
    def run(self, folders: Sequence[Path]) -> Iterator[Finished]:
        """Run tasks and yield each when it has ended, in the order in which they end.

        Closing the iterator stops the running tasks and starts no other.

        Args:
            folders: the folders of the tasks, which all machines of the executor see under the same path.
        """
