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

from classwise.core.files import ownership
from classwise.core.files.ownership import ATTEMPT, OWNER
from classwise.sweeps import commands
from classwise.sweeps.jobs import JOB
from classwise.sweeps.tasks import LOG, attempts, run_task, run_task_remotely
from tests.launching import ENVIRONMENT, write_programs
from tests.refusals import check_refused

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
        check_refused("is now owned by process 7 on elsewhere", run_task, folder)
    finally:
        thread.join()
    assert (tmp_path / "saved").exists()
    assert [line["event"] for line in attempts(folder)] == ["start"]


def kill_this(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "stop", "status"),
    [
        ("signal.SIG_IGN", commands.stop_running, -signal.SIGKILL),
        ("signal.SIG_IGN", lambda: kill_this(signal.SIGHUP), -signal.SIGKILL),
        ("lambda *_: sys.exit(1)", lambda: kill_this(signal.SIGTERM), commands.STOPPED),  # as torchrun ends
    ],
)
def test_a_command_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str, stop: Callable[[], None], status: int
) -> None:
    """It is killed if it ignores the signal, also where the signal came from the executor."""
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(ownership, "RENEWAL_SECONDS", 0.05)
    ready = tmp_path / "ready"
    program = f"import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, {handler}); "
    program += f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"

    def stop_when_ready() -> None:
        wait_until(ready.exists)
        stop()

    thread = threading.Thread(target=stop_when_ready)
    thread.start()
    assert run_task(write_programs(tmp_path / "task", program)) == status
    thread.join()


RUNS_A_TASK = """
import pathlib, sys
from classwise.sweeps.executors.local import Local
list(Local().run([pathlib.Path(sys.argv[1])]))
"""
STARTS_A_PROCESS = f"""
import subprocess, sys
joins = "from classwise.core.compute.distributed import launched; launched().__enter__()"
subprocess.run([sys.executable, "-c", joins + {SAVES!r}])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
@pytest.mark.parametrize("program", [RUNS_A_TASK, STARTS_A_PROCESS])
def test_processes_are_stopped_when_the_one_that_has_started_them_is_killed(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of a sweep or of shards, and the processes of torchrun."""
    folder = write_programs(tmp_path / "task", SAVES)
    monkeypatch.chdir(tmp_path)
    environment = os.environ | ENVIRONMENT | {"TORCHELASTIC_RUN_ID": "1"}
    process = subprocess.Popen([sys.executable, "-c", program, str(folder)], env=environment)
    wait_until(lambda: (tmp_path / "process").exists() and (tmp_path / "process").read_text())
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_until((tmp_path / "saved").exists)


def test_an_error_of_the_task_is_in_its_log(tmp_path: Path) -> None:
    assert run_task_remotely(tmp_path, 1, "ray-1") == 2
    assert (tmp_path / LOG).read_text().startswith(f"classwise: cannot read {tmp_path / JOB}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_handlers_of_signals_are_restored(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with commands.Commands(tmp_path / LOG, {}) as running:
        kill_this(number)
        assert running.run([sys.executable, "-c", "pass"]) == 143
    assert signal.getsignal(number) is before
