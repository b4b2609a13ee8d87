"""The commands of a task are stopped with a signal first, and do not outlive the process that has started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from classwise.core.errors import ClasswiseError
from classwise.core.files import ownership
from classwise.core.files.ownership import ATTEMPT, OWNER
from classwise.sweeps import commands
from classwise.sweeps.jobs import JOB
from classwise.sweeps.tasks import LOG, attempts, run_task, run_task_remotely
from tests.launching import ENVIRONMENT, write_programs

pytestmark = pytest.mark.usefixtures("forked")

SAVES = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path("process").write_text(str(os.getpid()))
time.sleep(60)
"""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[bytes]:
    """A process that runs a task whose first command saves when it is stopped."""
    folder = write_programs(tmp_path / "task", SAVES, "import pathlib; pathlib.Path('second').touch()")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "classwise.run", str(folder / JOB)]
    process = subprocess.Popen(command, env=os.environ | ENVIRONMENT)
    wait_until(lambda: (tmp_path / "process").exists() and (tmp_path / "process").read_text())
    return process


@pytest.mark.slow
def test_sigterm_stops_the_running_command_and_starts_no_other(
    running: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    running.terminate()
    assert running.wait(30) == 143
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "second").exists()
    assert [line.get("status") for line in attempts(tmp_path / "task")] == [None, 143]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_a_command_does_not_outlive_the_process_of_its_task(running: subprocess.Popen[bytes], tmp_path: Path) -> None:
    running.kill()
    assert running.wait() == -signal.SIGKILL
    wait_until((tmp_path / "saved").exists)
    assert [line["event"] for line in attempts(tmp_path / "task")] == ["start"]


@pytest.mark.slow
def test_the_variables_of_a_command_and_the_signals_of_slurm(tmp_path: Path) -> None:
    shown = f"import os; print(os.environ['OMP_NUM_THREADS'], os.environ['{ATTEMPT}'])"
    signalled = "import os, signal; [os.kill(os.getpid(), number) for number in (signal.SIGUSR1, signal.SIGUSR2)]"
    folder = write_programs(tmp_path, signalled, shown, "exit(3)")
    assert run_task(folder, cpus=3, job="slurm-7") == 3
    assert run_task(folder, cpus=0, job="slurm-7") == 3
    assert (folder / LOG).read_text() == "3 slurm-7 1\n1 slurm-7 2\n"


@pytest.mark.slow
def test_the_command_is_stopped_when_another_process_has_taken_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "RENEWAL_SECONDS", 0.05)
    folder = write_programs(tmp_path / "task", SAVES)
    monkeypatch.chdir(tmp_path)
    owner = {"token": "other", "process": 7, "host": "elsewhere", "since": "2026-01-01T00:00:00+00:00"}

    def take() -> None:
        wait_until((tmp_path / "process").exists)
        (folder / OWNER).write_text(json.dumps(owner))

    thread = threading.Thread(target=take)
    thread.start()
    try:
        with pytest.raises(ClasswiseError, match="is now owned by process 7 on elsewhere"):
            run_task(folder)
    finally:
        thread.join()
    assert (tmp_path / "saved").exists()
    assert [line["event"] for line in attempts(folder)] == ["start"]


@pytest.mark.slow
def test_a_command_that_ignores_the_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.2)
    ready = tmp_path / "ready"
    ignores = "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    ignores += f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"

    def stop() -> None:
        wait_until(ready.exists)
        commands.stop_running()

    thread = threading.Thread(target=stop)
    thread.start()
    assert run_task(write_programs(tmp_path / "task", ignores)) == -signal.SIGKILL
    thread.join()


def test_an_error_of_the_task_is_in_its_log(tmp_path: Path) -> None:
    assert run_task_remotely(tmp_path, 1, "ray-1") == 2
    assert (tmp_path / LOG).read_text().startswith(f"classwise: cannot read {tmp_path / JOB}")


def test_the_handler_of_sigterm_is_restored(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with commands.Commands(tmp_path / LOG, {}) as running:
        os.kill(os.getpid(), signal.SIGTERM)
        assert running.run([sys.executable, "-c", "pass"]) == 143
    assert signal.getsignal(signal.SIGTERM) is before
