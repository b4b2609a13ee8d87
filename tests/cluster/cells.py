"""Small cells of a sweep as tasks: a training on digits, then an audit, and what an uninterrupted run of it gives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from classwise.sweeps.tasks import LOG, Task, attempts
from tests.faults.client import files_of_run, rows_of_audit
from tests.launching import ENVIRONMENT, ROOT

EPOCHS = 4


def cell(folder: Path, *, seed: int = 0) -> Path:
    """Write the task of a cell; returns its folder."""
    run = str(folder / "run")
    small = ["--set=model.width=0.0625", "--set=data.subset=240", f"--set=epochs={EPOCHS}", f"--set=seed={seed}"]
    training = ("train", "cfa-at", "--budget=short", "--data=digits", f"--out={run}", *small, "--resume")
    audit = ("audit", run, "--attack=pgd:steps=5", "--subset=100", "--guards=off", f"--out={folder / 'audit'}")
    Task(folder, tuple(("-m", "classwise", *words) for words in (training, (*audit, "--resume")))).write()
    return folder


def uninterrupted(folder: Path, *, seed: int = 0) -> Path:
    """Run a cell without an engine; returns its folder."""
    task = Task.read(cell(folder, seed=seed))
    for command in task.commands:
        subprocess.run([sys.executable, *command], cwd=ROOT, env=os.environ | ENVIRONMENT, check=True, timeout=300)
    return folder


def assert_same_bits(found: Path, expected: Path) -> None:
    """Check the results of a cell against those of another."""
    mine, other = files_of_run(found / "run"), files_of_run(expected / "run")
    assert mine.keys() == other.keys()
    assert [name for name in mine if mine[name] != other[name]] == []
    assert rows_of_audit(found / "audit").equals(rows_of_audit(expected / "audit"))


def in_training(folder: Path) -> bool:
    """Whether a cell has a checkpoint from which it can continue, and epochs left."""
    return (folder / "run" / "checkpoints" / "state.pt").is_file() and not (folder / "audit").exists()


def process_of(folder: Path) -> int:
    """The process of a task's last attempt."""
    return int([line for line in attempts(folder) if line["event"] == "start"][-1]["process"])


def starts(folder: Path) -> int:
    """Number of attempts of a task."""
    return sum(line["event"] == "start" for line in attempts(folder))


def log_of(folder: Path) -> str:
    """The log of a task, for the message of a failed assertion."""
    path = folder / LOG
    return path.read_text(encoding="utf-8", errors="replace")[-4000:] if path.is_file() else ""


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until a condition is true.

    Raises:
        TimeoutError: if it is not within some seconds.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)
