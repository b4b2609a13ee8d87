"""A task: commands that run one after the other, and a folder that records their attempts.

Only the path of the folder crosses an executor. Whatever the commands read and write is named in their arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError
from classwise.core.ownership import ATTEMPT, Attempt, check, owned
from classwise.core.storage import read_json, write_text
from classwise.sweeps.commands import STOPPED, Commands

SCHEMA_VERSION = 1
TASK = "task.json"
"""The file of a task's commands."""
ATTEMPTS = "attempts.jsonl"
"""A line at the start and at the end of each attempt; an attempt without an end is running, or was killed.

The line of a start has the host, the process, and the size of the log before it.
"""
LOG = "log.txt"
"""What the commands of all attempts print, on both streams."""


@dataclass(frozen=True)
class Task:
    r"""Commands that run one after the other; each continues its own work if the task is repeated.

    Args:
        folder: the folder of the task.
        commands: arguments of the Python interpreter, such as ``("-m", "classwise", "audit", "runs/at", "--resume")``.
        processes: number of processes of each command; more than one are started by ``torchrun``.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     task = Task(Path(folder) / "hello", (("-c", "print('hello')"),))
        ...     task.write()
        ...     status = run_task(task.folder)
        ...     status, (task.folder / LOG).read_text()
        (0, 'hello\n')
    """

    folder: Path
    commands: tuple[tuple[str, ...], ...]
    processes: int = 1

    def write(self) -> None:
        """Write the task into its folder.

        Raises:
            ClasswiseError: if the file cannot be written.
        """
        facts = {"schema_version": SCHEMA_VERSION, "commands": self.commands, "processes": self.processes}
        write_text(self.folder / TASK, json.dumps(facts, indent=1) + "\n")

    @staticmethod
    def read(folder: Path) -> Task:
        """Read the task of a folder.

        Raises:
            ClasswiseError: if the folder contains no task.
        """
        facts = read_json(folder / TASK, keys={"commands": list, "processes": int})
        return Task(folder, tuple(tuple(command) for command in facts["commands"]), facts["processes"])

    def arguments(self, command: Sequence[str]) -> list[str]:
        """The argument list of one of the commands, with its interpreter."""
        if self.processes == 1:
            return [sys.executable, *command]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        return [sys.executable, *launcher, *command]


def run_task(folder: Path, *, cpus: int | None = None, job: str | None = None) -> int:
    """Run the commands of a task on this machine, and record the attempt.

    SIGTERM is forwarded to the running command, which then saves its work; no further command is started. If this
    process is killed, the running command gets SIGTERM (Linux only).

    Args:
        folder: the folder of the task.
        cpus: number of CPUs, divided among the processes of a command as threads; None: the environment decides.
        job: an identifier of the task in an engine that restarts it. A restarted job takes over the folders that an
            earlier attempt still owns (`classwise.core.ownership`).

    Returns:
        The exit status of the first command that failed, or 0.

    Raises:
        ClasswiseError: if the folder contains no task, or another process runs it or has taken it over.
    """
    task = Task.read(folder)
    number = 1 + sum(line["event"] == "start" for line in attempts(folder))
    attempt = Attempt(job, number) if job else None
    environment = {} if cpus is None else thread_variables(cpus // task.processes)
    if attempt is not None:
        environment[ATTEMPT] = attempt.variable
    with owned(folder, attempt):
        name, log = uuid.uuid4().hex[:12], folder / LOG
        before = log.stat().st_size if log.exists() else 0
        status = STOPPED
        try:
            record(folder, attempt=name, event="start", host=platform.node(), process=os.getpid(), log=before)
            with Commands(log, environment) as commands:
                for command in task.commands:
                    status = commands.run(task.arguments(command))
                    if status:
                        break
        except Exception:
            status = 2
            raise
        finally:
            if any(line["attempt"] == name for line in attempts(folder)):  # the start may have been interrupted
                record(folder, attempt=name, event="end", status=status)
    return status


def run_task_remotely(folder: Path, cpus: int, job: str) -> int:
    """`run_task` in a process of an engine: an error is appended to the log of the task, and its status is 2."""
    try:
        return run_task(folder, cpus=cpus, job=job)
    except ClasswiseError as error:
        with contextlib.suppress(OSError), open(folder / LOG, "a", encoding="utf-8") as log:  # the folder is missing
            log.write(f"classwise: {error}\n")
        return 2


def thread_variables(threads: int) -> dict[str, str]:
    """Environment variables that give a process a number of threads, at least 1."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(max(threads, 1)))


def attempts(folder: Path) -> list[dict[str, Any]]:
    """The recorded starts and ends of a task's attempts, in order; a truncated last line is left out."""
    try:
        lines = (folder / ATTEMPTS).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    try:
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError as error:
        raise ClasswiseError(f"{folder / ATTEMPTS} is damaged (not JSON lines); delete it") from error


def record(folder: Path, **facts: Any) -> None:
    """Append a line with these facts and the time to the attempts of a task, in one write call.

    Raises:
        ClasswiseError: if another process has taken over the folder.
    """
    check(folder / ATTEMPTS)
    facts["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
    handle = os.open(folder / ATTEMPTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, json.dumps(facts).encode() + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)
