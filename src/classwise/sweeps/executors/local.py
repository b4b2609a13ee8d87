"""`Local`: tasks in worker processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from classwise.core.errors import ClasswiseError
from classwise.sweeps.commands import GRACE_SECONDS, launcher
from classwise.sweeps.executors.base import Executor, Finished, check_numbers
from classwise.sweeps.jobs import JOB
from classwise.sweeps.tasks import thread_variables

_POLL_SECONDS = 0.05
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Local(Executor):
    """Runs each task in a process of its own.

    Args:
        workers: number of tasks that run at once.
        threads: threads of each task, on which the last bits of results depend; None: ``OMP_NUM_THREADS``, or if it is
            not set, the CPUs of this machine divided by the workers.
        gpus: GPUs of each task, selected by ``CUDA_VISIBLE_DEVICES`` from those that are visible to this process.

    Raises:
        ClasswiseError: if ``workers`` is not positive, or too few GPUs are visible to this process.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from classwise.sweeps.jobs import Call, Job
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folders = [Path(name) / "node", Path(name) / "audit"]
        ...     for folder, function in zip(folders, ("platform:node", "audit"), strict=True):
        ...         Job(calls=(Call(function=function),)).write(folder)
        ...     sorted(ended.status for ended in Local(workers=2).run(folders))  # an audit requires a model
        [0, 2]
    """

    workers: int = 1
    gpus: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self.workers, self.gpus)
        if self.threads is not None and self.threads < 1:
            raise ClasswiseError(f"threads = {self.threads}: must be at least 1")
        visible, needed = os.environ.get(_VISIBLE), self.workers * self.gpus
        if visible is not None and needed > len(_listed(visible)):
            raise ClasswiseError(
                f"{self.workers} workers with {self.gpus} GPUs each need {needed}, and {_VISIBLE}={visible} has fewer"
            )

    def run(self, folders: Sequence[Path]) -> Iterator[Finished]:
        """Run tasks; see `Executor.run`. A task that is stopped gets SIGTERM and then half a minute to save.

        So do the tasks of a process that is killed, on Linux. What a task has started does not outlive it.
        """
        waiting, running = list(folders), dict[Path, subprocess.Popen[bytes]]()
        free, slots = list(range(self.workers)), dict[Path, int]()
        try:
            while waiting or running:
                while waiting and free:
                    folder = waiting.pop(0)
                    slots[folder] = free.pop(0)
                    running[folder] = self._start(folder, slots[folder])
                ended = [folder for folder, process in running.items() if process.poll() is not None]
                for folder in ended:
                    _signal(running[folder], signal.SIGKILL)
                    free.append(slots.pop(folder))
                    yield Finished(folder, running.pop(folder).returncode)
                if not ended:
                    time.sleep(_POLL_SECONDS)
        finally:
            _stop(running.values())

    def _start(self, folder: Path, slot: int) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if self.threads is not None:
            environment |= thread_variables(self.threads)
        elif "OMP_NUM_THREADS" not in environment:
            environment |= thread_variables((os.cpu_count() or 1) // self.workers)
        if self.gpus:
            first, end = slot * self.gpus, (slot + 1) * self.gpus
            visible = os.environ.get(_VISIBLE)
            devices = list(map(str, range(end))) if visible is None else _listed(visible)
            environment[_VISIBLE] = ",".join(devices[first:end])
        # A session of its own, so that a signal reaches the processes that the task starts.
        return subprocess.Popen(  # noqa: S603
            [*launcher(), sys.executable, "-m", "classwise.run", str(folder / JOB)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def _listed(visible: str) -> list[str]:
    return [device.strip() for device in visible.split(",") if device.strip()]


def _stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Stop processes and those that they have started."""
    stopped = list(processes)
    for process in stopped:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for process in stopped:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0))
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
