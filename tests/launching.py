"""Start programs of the tests: in several processes, by ``torchrun`` or by hand, and as the calls of jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    """Run a module in two processes, with the folder as its argument; what goes wrong is in the assertion."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", module]
    environment = os.environ | ENVIRONMENT
    log = folder / "log.txt"
    with log.open("wb") as file:
        launcher = subprocess.Popen(
            [sys.executable, *words, str(folder)], cwd=ROOT, env=environment, stdout=file, stderr=file
        )
        try:
            status = launcher.wait(120)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # and torchrun ends its processes
            status = launcher.wait(60)
    assert status == 0, log.read_text(errors="replace")[-4000:]
