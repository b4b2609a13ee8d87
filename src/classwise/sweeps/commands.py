"""The processes of a task: started, stopped by a signal so that they save their work, and never left behind."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from classwise.core.files import ownership
from classwise.core.progress.interruption import STOP_SIGNALS

STOPPED = 128 + signal.SIGTERM
"""Exit status of a command that was stopped."""
GRACE_SECONDS = 30.0
"""How long a stopped command may take to save its work before it is killed."""

_running: set[subprocess.Popen[bytes]] = set()
"""The running commands of this process: one, or none."""

# PR_SET_PDEATHSIG is 1. Slurm sends SIGUSR2 to all processes of a job that it preempts; only the task's reacts to it.
_LAUNCHER = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(143)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Commands:
    r"""Runs commands one after the other; a context manager that handles SIGTERM and SIGHUP in its block.

    On such a signal the running command gets SIGTERM, and SIGKILL after `GRACE_SECONDS`; no further one is started.

    Args:
        log: the file to which both streams of the commands are appended.
        environment: variables that are added to the environment.
        directory: the working directory of the commands; None: that of this process.

    Example:
        >>> import sys, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = Path(folder) / "log.txt"
        ...     with Commands(log, {"COLOUR": "red"}) as commands:
        ...         status = commands.run([sys.executable, "-c", "import os; print(os.environ['COLOUR'])"])
        ...     status, log.read_text()
        (0, 'red\n')
    """

    def __init__(self, log: Path, environment: Mapping[str, str], directory: str | None = None) -> None:
        self._log = log
        self._directory = directory
        self._environment = os.environ | environment
        self._stopped, self._deadline = threading.Event(), math.inf

    def run(self, arguments: Sequence[str]) -> int:
        """Run a command and wait until it has ended.

        Args:
            arguments: a Python interpreter and its arguments.

        Returns:
            Its exit status, or the negative number of the signal that killed it.

        Raises:
            ClasswiseError: if another process has taken over the folder of the log; the command is stopped before.
        """
        if self._stopped.is_set():
            return STOPPED
        with open(self._log, "ab") as output:
            process = subprocess.Popen(  # noqa: S603  # the commands of a task are trusted as much as a script
                [*launcher(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd=self._directory,
            )
        _running.add(process)
        try:
            if self._stopped.is_set():  # between the check above and here
                process.terminate()
            while True:
                try:
                    status = process.wait(ownership.RENEWAL_SECONDS)
                except subprocess.TimeoutExpired:
                    if time.monotonic() > self._deadline:
                        process.kill()
                    ownership.check(self._log)
                else:  # that of ``torchrun`` is 1 whatever stopped its processes
                    return STOPPED if self._stopped.is_set() and status > 0 else status
        finally:
            stop_running()
            process.wait()
            _running.discard(process)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stopped.set()
        self._deadline = time.monotonic() + GRACE_SECONDS
        for process in tuple(_running):
            process.terminate()

    def __enter__(self) -> Commands:
        self._handles = threading.current_thread() is threading.main_thread()
        if self._handles:
            before = {number: signal.getsignal(number) for number in STOP_SIGNALS if number is not signal.SIGINT}
            # ``nohup`` ignores SIGHUP.
            self._before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
            for number in self._before:
                signal.signal(number, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handles:
            for number, handler in self._before.items():
                signal.signal(number, handler)


def stop_running() -> None:
    """Stop the running command of this process, if there is one: SIGTERM, and SIGKILL after `GRACE_SECONDS`.

    Signal handlers may call it while `Commands.run` waits for the command.
    """
    for process in tuple(_running):
        if not _has_ended(process):
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    while not _has_ended(process):
        if time.monotonic() > deadline:
            process.kill()
        time.sleep(0.02)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended, without `Popen.poll`, whose lock the interrupted `Popen.wait` may have."""
    if process.returncode is not None:
        return True
    if sys.platform == "win32":
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # waited for, but its status not stored yet
        return True


def launcher() -> list[str]:
    """A Python program that starts a command, so that the command gets SIGTERM when this process ends (Linux only).

    It gets it also when the thread ends that has started it.
    """
    if sys.platform == "win32":
        return []
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
