"""Small cells of a sweep as tasks: a training on digits, then an audit, and what an uninterrupted run of it gives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from classwise.sweeps.jobs import JOB, Call, Job
from classwise.sweeps.tasks import LOG, attempts
from tests.faults.client import files_of_run, rows_of_audit
from tests.launching import ENVIRONMENT, ROOT

EPOCHS = 16


def cell(folder: Path, *, audited: bool = True) -> Path:
    """Write the task of a cell, a training and perhaps an audit; returns its folder."""
    run = str(folder / "run")
    small = ["model.width=0.0625", "data.subset=240", f"epochs={EPOCHS}"]
    recipe: dict[str, Any] = {"recipe": "cfa-at", "budget": "short", "data": "digits", "set": small, "resume": True}
    calls = [Call(function="train", arguments=recipe, out=run)]
    if audited:
        attack: dict[str, Any] = {"attack": ["pgd:steps=5"], "subset": 100, "guards": "off", "resume": True}
        calls.append(Call(function="audit", arguments={"model": run, **attack}, out=str(folder / "audit")))
    Job(calls=tuple(calls)).write(folder)
    return folder


def uninterrupted(folder: Path) -> Path:
    """Run a cell without an engine; returns its folder."""
    command = [sys.executable, "-m", "classwise.run", str(cell(folder) / JOB)]
    subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, check=True, timeout=1800)
    return folder


def assert_same_bits(found: Path, expected: Path) -> None:
    """Check the results of a cell against those of another, which has an audit too."""
    mine, other = files_of_run(found / "run"), files_of_run(expected / "run")
    assert mine.keys() == other.keys()
    assert [name for name in mine if mine[name] != other[name]] == []
    if len(Job.read(found / JOB).calls) > 1:
        assert rows_of_audit(found / "audit").equals(rows_of_audit(expected / "audit"))


def in_training(folder: Path) -> bool:
    """Whether a cell has a checkpoint from which it can continue, and epochs left."""
    saved = (folder / "run" / "checkpoints" / "state.pt").is_file() and not (folder / "audit").exists()
    return saved and attempts(folder)[-1]["event"] == "start"


def process_of(folder: Path) -> int:
    """The process of a task's last attempt."""
    return int([line for line in attempts(folder) if line["event"] == "start"][-1]["process"])


def starts(folder: Path) -> int:
    """Number of attempts of a task."""
    return sum(line["event"] == "start" for line in attempts(folder))


def log_of(folder: Path) -> str:
    """The log of a task; empty if it has none."""
    path = folder / LOG
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def wait_until(condition: Callable[[], object], seconds: float = 300) -> None:
    """Wait until a condition is true.

    Raises:
        TimeoutError: if it is not within some seconds.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def wait_for_one(folders: Sequence[Path], condition: Callable[[Path], bool]) -> Path:
    """Wait until a condition is true of one of these cells; returns its folder."""
    found: list[Path] = []

    def look() -> bool:
        found.extend(filter(condition, folders))
        return bool(found)

    wait_until(look)
    return found[0]
