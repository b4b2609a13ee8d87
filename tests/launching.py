"""Start programs of the tests: in two forked processes of one group, and as the calls of jobs.

As a program it imports a module, forks two processes of one group, and calls the module's ``run`` with a folder in
each: they share the imports.
"""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from classwise.sweeps.jobs import Call, Job

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def execute(program: str) -> None:
    """Replace this process by one that runs a program; a function for the calls of a job."""
    os.execv(sys.executable, [sys.executable, "-c", program])


def program_call(program: str) -> Call:
    """The call of a job that runs a program."""
    return Call(function="tests.launching:execute", arguments={"program": program})


def write_programs(folder: Path, *programs: str) -> Path:
    """Write a job that runs programs one after the other; returns its folder."""
    calls = tuple(program_call(program) for program in programs)
    Job(calls=calls, environment={"PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}).write(folder)
    return folder


def launch(module: str, folder: Path) -> None:
    """Call the function ``run`` of a module in two processes, with the folder; what goes wrong is in the assertion."""
    environment = os.environ | ENVIRONMENT
    log = folder / "log.txt"
    with log.open("wb") as file:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "tests.launching", module, str(folder)],
            cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
        try:
            status = launcher.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(launcher.pid, signal.SIGTERM)
            status = launcher.wait(60)
    assert status == 0, log.read_text(errors="replace")[-4000:]


def _in_rank(rank: int, port: int, run: Callable[[Path], None], folder: Path) -> NoReturn:
    """Call a function in this forked process, the rank of a group of two, and end it."""
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    status = 1
    try:
        run(folder)
        atexit._run_exitfuncs()  # which destroys the process group
        status = 0
    except BaseException:  # noqa: BLE001  # logged
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def fork_ranks(module: str, folder: Path) -> None:
    """Call the function ``run`` of a module in two forked processes; if one fails, the other is killed."""
    import torch._dynamo  # noqa: F401  # which optimisers import: here once, for both

    run = importlib.import_module(module).run
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
    children = set[int]()
    for rank in range(2):
        if child := os.fork():
            children.add(child)
        else:
            _in_rank(rank, port, run, folder)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


if __name__ == "__main__":
    fork_ranks(sys.argv[1], Path(sys.argv[2]))
