"""`Slurm`: tasks as job arrays of a Slurm cluster, through submitit."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.extras import require
from classwise.sweeps.commands import GRACE_SECONDS, stop_running
from classwise.sweeps.executors.base import Executor, Finished, check_numbers
from classwise.sweeps.tasks import attempts, run_task_remotely

LOGS = ".slurm"
"""The folder of submitit's files, inside the common parent of the tasks."""
TIMEOUT_MINUTES = 60
"""Time limit of a job without the setting ``timeout_min``."""
TIMEOUTS = 1000
"""How often a job that has reached its time limit is requeued; each time it continues its work."""
ARRAY_SIZE = 1000
"""Largest job array; Slurm's own default limit (MaxArraySize) is 1001."""
POLL_SECONDS = 5.0
ANSWER_SECONDS = 60.0
"""How long the controller may take to answer before it counts as unreachable."""

_RENAMED = {"gpus_per_node": "gpus", "array_parallelism": "workers"}
"""Settings of submitit that are fields of `Slurm`."""
_FIXED = ("nodes", "tasks_per_node", "ntasks_per_node", "num_gpus", "max_num_timeout", "setup", "teardown")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slurm(Executor):
    """Runs each task as an element of a job array, submitted through submitit; extra ``slurm``.

    A job that is preempted, reaches its time limit, or whose node fails is requeued, and continues its task. A job of
    which a process was killed is not: its task has failed. All nodes see the folders of the tasks under the same path.
    Tasks have as many threads as their jobs have CPUs (``cpus_per_task``). More than `ARRAY_SIZE` tasks are submitted
    in several arrays, one after the other.

    Args:
        workers: number of jobs that run at once; None: as many as Slurm starts.
        gpus: number of GPUs of a job.
        settings: further settings of submitit, such as ``{"partition": "gpu", "timeout_min": "600"}``.

    Raises:
        ClasswiseError: if submitit is not installed or has no such setting, or a number is out of its range.

    Source: submitit, https://github.com/facebookincubator/submitit.
    """

    workers: int | None = None
    gpus: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_numbers(self.workers, self.gpus)
        known = _known_settings()
        for name in self.settings:
            if name in _RENAMED:
                raise ClasswiseError(f"setting {name!r} of Slurm: use {_RENAMED[name]!r} instead")
            if name not in known:
                raise unknown("setting of Slurm", name, known)

    def check(self) -> None:
        """Check that this machine can submit jobs.

        Raises:
            ClasswiseError: if it has no ``sbatch`` or no ``squeue``, or the controller of Slurm does not answer.
        """
        for program in ("sbatch", "squeue"):
            if shutil.which(program) is None:
                raise ClasswiseError(
                    f"there is no Slurm on this machine: {program} was not found; submit from a login node"
                )
        command = ["squeue", "--noheader", f"--user={os.getuid()}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise ClasswiseError(
                f"no answer from Slurm: squeue took more than {ANSWER_SECONDS:g} s; submit from a login node"
            ) from error
        if done.returncode:
            line = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise ClasswiseError(f"no answer from Slurm: {line}; submit from a login node")

    def run(self, folders: Sequence[Path]) -> Iterator[Finished]:
        """Run tasks; see `Executor.run`. Jobs that are stopped get SIGTERM, and Slurm's KillWait to save.

        Raises:
            ClasswiseError: if there is no Slurm on this machine, or it rejects the jobs.
        """
        for start in range(0, len(folders), ARRAY_SIZE):
            yield from self._run_array(folders[start : start + ARRAY_SIZE])

    def _run_array(self, folders: Sequence[Path]) -> Iterator[Finished]:
        parent = Path(os.path.commonpath([folder.absolute().parent for folder in folders]))
        before = {folder: len(attempts(folder)) for folder in folders}
        running = dict(zip(self._submitted(parent / LOGS, folders), folders, strict=True))
        array = next(iter(running)).partition("_")[0]
        logger.info("submitted %d tasks as Slurm job %s", len(folders), array)
        try:
            while running:
                queued = _queued(array)
                for job in [] if queued is None else [job for job in running if job not in queued]:
                    folder = running.pop(job)
                    yield Finished(folder, _status(folder, before[folder]))
                if running:
                    time.sleep(POLL_SECONDS)
        finally:
            if running:
                subprocess.run(["scancel", *running], check=False)  # noqa: S603, S607
                _await_end(array)

    def _submitted(self, logs: Path, folders: Sequence[Path]) -> list[str]:
        """Submit tasks; the ids of their jobs.

        Raises:
            ClasswiseError: if Slurm or submitit rejects them.
        """
        submitit = require("submitit", "slurm")
        try:
            executor = submitit.AutoExecutor(logs, cluster="slurm", slurm_max_num_timeout=TIMEOUTS)
            executor.update_parameters(**self._parameters())
            # submitit prints the errors of sbatch, which the error below repeats
            with contextlib.redirect_stderr(io.StringIO()), executor.batch():
                jobs = [executor.submit(SlurmTask(str(folder.absolute()))) for folder in folders]
            return [job.job_id for job in jobs]
        except (AssertionError, RuntimeError, ValueError, submitit.core.utils.FailedSubmissionError) as error:
            lines = [line.removeprefix("sbatch: error: ").strip() for line in str(error).strip().splitlines()]
            said = "; ".join(filter(None, lines)) or type(error).__name__
            raise ClasswiseError(f"the jobs were refused by Slurm: {said}; check the settings in --slurm") from error

    def _parameters(self) -> dict[str, Any]:
        """The arguments of submitit's ``update_parameters``."""
        submitit = require("submitit", "slurm")
        shared = submitit.AutoExecutor._typed_parameters()
        parameters: dict[str, Any] = {"name": "classwise"}
        if not {"time", "timeout_min"} & self.settings.keys():
            parameters["timeout_min"] = TIMEOUT_MINUTES
        for name, value in self.settings.items():
            parameters[name if name in shared else f"slurm_{name}"] = value if name == "name" else _value(value)
        if "cpus_per_task" in self.settings:  # Slurm 22.05 and later: srun does not take it from the job
            parameters["slurm_srun_args"] = [f"--cpus-per-task={self.settings['cpus_per_task']}"]
        if self.gpus:
            parameters["gpus_per_node"] = self.gpus
        if self.workers:
            parameters["slurm_array_parallelism"] = self.workers
        return parameters


@dataclass(frozen=True)
class SlurmTask:
    """What a job of Slurm calls; it is pickled, and holds the path of the task's folder only."""

    folder: str

    def __call__(self) -> None:
        """Run the task; a status other than 0 is the exit status of the job."""
        cpus = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE") or "1"
        status = run_task_remotely(Path(self.folder), int(cpus), f"slurm-{os.environ['SLURM_JOB_ID']}")
        if status:
            sys.exit(status if status > 0 else 128 - status)

    def __submitit_checkpoint__(self) -> Any:
        """Stop the running call, so that it saves its work, before submitit requeues the job.

        From then on SIGTERM is ignored, also by ``scontrol requeue``, which submitit starts: Slurm sends it to all
        processes of the job as soon as the job is requeued, and the attempt would be recorded as failed.
        """
        stop_running()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return require("submitit", "slurm").helpers.DelayedSubmission(self)

    checkpoint = __submitit_checkpoint__  # submitit looks for this name too before it requeues a job


def _known_settings() -> list[str]:
    """The settings that submitit accepts."""
    submitit = require("submitit", "slurm")
    shared = submitit.AutoExecutor._typed_parameters()
    return sorted({*shared, *submitit.SlurmExecutor._valid_parameters()} - {*_FIXED, *_RENAMED})


def _value(text: str) -> int | float | bool | str:
    """The value of a setting with the type that submitit expects."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _queued(array: str) -> frozenset[str] | None:
    """The jobs of an array that are pending, running or completing; None if Slurm does not answer."""
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={array}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode == 0:
        return frozenset(done.stdout.split())
    if "Invalid job id" in done.stderr:  # all have ended some minutes ago
        return frozenset()
    logger.warning("squeue: %s; trying again", done.stderr.strip())
    return None


def _await_end(array: str) -> None:
    """Wait until the cancelled jobs of an array have left the queue, so that their ends are recorded."""
    deadline = time.monotonic() + GRACE_SECONDS
    while _queued(array) != frozenset() and time.monotonic() < deadline:
        time.sleep(min(POLL_SECONDS, 1.0))


def _status(folder: Path, before: int) -> int:
    """The status of a task whose job has ended: that of the last attempt's end, or -SIGKILL if it has none."""
    new = attempts(folder)[before:]
    return int(new[-1]["status"]) if new and new[-1]["event"] == "end" else -signal.SIGKILL
