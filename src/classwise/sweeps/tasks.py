"""A task: a folder with a job (`classwise.sweeps.jobs`), and the record of the attempts to run it.

Only the path of the folder crosses an executor. Whatever the calls of the job read and write is named in its file.
"""

from __future__ import annotations

import contextlib
import os
import platform
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import pydantic
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.core.errors import ClasswiseError
from classwise.core.files.json_values import json_text
from classwise.core.files.ownership import ATTEMPT, Attempt, check, owned
from classwise.core.files.reading import Lines, check_regular, read_lines
from classwise.sweeps.commands import STOPPED, Commands
from classwise.sweeps.jobs import JOB, Job

ATTEMPTS = "attempts.jsonl"
"""A line at the start and at the end of each attempt; an attempt without an end is running, or was killed.

The line of a start has the host, the process, and the size of the log before it.
"""
LOG = "log.txt"
"""What the calls of all attempts print, on both streams."""


def _time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Time = Annotated[str, pydantic.AfterValidator(_time)]
"""A time in ISO 8601, with its zone."""


class Start(TypedDict):
    """The start of an attempt: its machine and process, and the size of the log before it in bytes."""

    event: Literal["start"]
    attempt: str
    host: str
    process: NotRequired[int]
    log: NotRequired[Annotated[int, pydantic.Field(ge=0)]]
    time: NotRequired[Time]


class End(TypedDict):
    """The end of an attempt, with its exit status."""

    event: Literal["end"]
    attempt: str
    status: int
    time: NotRequired[Time]


class Changed(TypedDict):
    """After this event a finished task runs again, since audits of its cell were added or changed."""

    event: Literal["changed"]
    time: NotRequired[Time]


Event = Annotated[Start | End | Changed, pydantic.Field(discriminator="event")]
"""A line of `ATTEMPTS`."""


def run_task(folder: Path, *, cpus: int | None = None, job: str | None = None) -> int:
    """Run the job of a task on this machine, and record the attempt.

    On SIGTERM and SIGHUP the running call gets SIGTERM, to save its work, and SIGKILL half a minute later; no further
    call is started. If this process is killed, the running call gets SIGTERM (Linux only).

    Args:
        folder: the folder of the task.
        cpus: number of CPUs, divided among the processes of a call as threads; None: the environment decides.
        job: an identifier of the task in an engine that restarts it. A restarted job takes over the folders that an
            earlier attempt still owns (`classwise.core.files.ownership`).

    Returns:
        The exit status of the first call that failed, or 0.

    Raises:
        ClasswiseError: if the folder contains no job, its directory does not exist, or another process runs it or has
            taken it over.

    Example:
        >>> import tempfile
        >>> from classwise.sweeps.jobs import Call
        >>> with tempfile.TemporaryDirectory() as name:
        ...     Job(calls=(Call(function="platform:node"),)).write(Path(name))
        ...     run_task(Path(name))
        0
    """
    job_file = folder / JOB
    task = Job.read(job_file)
    if task.directory is not None and not Path(task.directory).is_dir():
        raise ClasswiseError(f"{job_file}: the directory {task.directory} does not exist on this machine")
    starts = sum(line["event"] == "start" for line in attempts(folder))
    attempt = Attempt(job, 1 + starts) if job else None
    environment = {} if cpus is None else thread_variables(cpus // task.processes)
    if attempt is not None:
        environment[ATTEMPT] = attempt.variable
    environment |= task.environment
    with owned(folder, attempt):
        name, log = uuid.uuid4().hex[:12], folder / LOG
        check_regular(log)
        before = log.stat().st_size if log.exists() else 0
        status = STOPPED
        try:
            record(folder, attempt=name, event="start", host=platform.node(), process=os.getpid(), log=before)
            with Commands(log.absolute(), environment, task.directory) as commands:
                for number in range(1, len(task.calls) + 1):
                    status = commands.run(task.command(job_file, number))
                    if status:
                        break
        except Exception:
            status = 2
            raise
        finally:
            if any(line.get("attempt") == name for line in attempts(folder)):  # the start may have been interrupted
                record(folder, attempt=name, event="end", status=status)
    return status


def run_task_remotely(folder: Path, cpus: int, job: str) -> int:
    """`run_task` in a process of an engine: an error is appended to the log of the task, and its status is 2."""
    try:
        return run_task(folder, cpus=cpus, job=job)
    except ClasswiseError as error:
        with contextlib.suppress(OSError, ClasswiseError):  # the folder is missing
            check_regular(folder / LOG)
            with open(folder / LOG, "a", encoding="utf-8") as log:
                log.write(f"classwise: {error}\n")
        return 2


def thread_variables(threads: int) -> dict[str, str]:
    """Environment variables that give a process a number of threads, at least 1."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(max(threads, 1)))


def attempts(folder: Path) -> list[dict[str, Any]]:
    """The recorded starts and ends of a task's attempts, in order; damaged lines are left out."""
    return read_attempts(folder).records


def read_attempts(folder: Path) -> Lines:
    """The recorded starts and ends of a task's attempts, in order, as `Event`, and a message for each damaged line."""
    return read_lines(folder / ATTEMPTS, Event)


def record(folder: Path, **facts: Any) -> None:
    """Append a line with these facts and the time to the attempts of a task, in one write call.

    Raises:
        ClasswiseError: if another process has taken over the folder, or the file is not a regular one.
    """
    check(folder / ATTEMPTS)
    check_regular(folder / ATTEMPTS)
    facts["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
    handle = os.open(folder / ATTEMPTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, json_text(facts).encode() + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)
