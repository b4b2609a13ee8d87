"""The tests that need a GPU, in a process of their own: one cell for each test of ``tests/gpu``."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.cells import LEAST, MOST, Result, Stage, Task
from benchmarks.gpu.machine import ROOT
from benchmarks.tables import table

WORKERS = 4
"""Processes that share the tests, with pytest-xdist: most of a test's time is Python's."""
FOLDER = Path("tests") / "gpu"
POLL = 0.2
"""Seconds between two looks at the messages."""


class Messages:
    """The lines of a file that another process appends to.

    Attributes:
        under_way: the tests that have started and not ended.
        ended: the messages of the tests that have ended, in order; `taken` removes them.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._place = 0
        self._ended: list[dict[str, Any]] = []
        self.under_way: dict[str, float] = {}
        self.names: list[str] = []

    def read(self) -> list[dict[str, Any]]:
        """The messages of tests that have ended since the last call."""
        if not self._file.is_file():
            return []
        with self._file.open(encoding="utf-8") as file:
            file.seek(self._place)
            text = file.read()
        whole, _, _ = text.rpartition("\n")
        self._place += len(whole.encode()) + bool(whole)
        ended = []
        for message in map(json.loads, whole.splitlines()):
            if "start" in message:
                self.under_way[message["start"]] = time.monotonic()
            elif "end" in message:
                self.under_way.pop(message["end"], None)
                ended.append(message)
            else:
                self.names += [name for name in message["names"] if name not in self.names]
        return ended


def run_tests(task: Task, folder: Path = FOLDER, root: Path = ROOT, most: float = MOST) -> None:
    """Run the tests; each is recorded as it ends. A test that does not end, or ends its process, has failed.

    Args:
        task: the cells that are asked for.
        folder: of the tests, in the root.
        root: the working directory.
        most: seconds after which a test is stopped.
    """
    names = task.report.names.get(task.stage.name)
    progress = True
    while progress and task.remaining >= LEAST:
        if names is not None and not any(map(task.wants, names)):
            return
        before = len(task.fresh)
        if _session(task, folder, root, most):
            return
        names, progress = task.report.names.get(task.stage.name), len(task.fresh) > before


def _session(task: Task, folder: Path, root: Path, most: float) -> bool:
    """Run pytest once; whether it ran to its end, or the call ends."""
    known = task.report.names.get(task.stage.name, [])
    without = [name for name in {*known, *task.known} if not task.wants(name)]
    with tempfile.TemporaryDirectory() as temporary:
        messages, left_out = Path(temporary, "messages"), Path(temporary, "without")
        left_out.write_text(json.dumps(without))
        command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider"]
        command += ["-p", "benchmarks.gpu.messages", "--messages", str(messages), "--without", str(left_out)]
        command += ["--continue-on-collection-errors"]
        if importlib.util.find_spec("xdist"):
            command += ["-n", str(min(WORKERS, os.cpu_count() or 1))]
        log = Path(temporary, "log")
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, str(folder)], cwd=root, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            reason = _followed(task, process, Messages(messages), known, most)
        finally:
            _end(process)
        if reason == "":
            return True
        status, last = process.returncode, (log.read_text().strip().splitlines() or [""])[-1]
        if reason == "ended" and status not in (0, 1, 5):  # 5: no test was left
            task.add("pytest", {"error": f"status {status}: {last}", "seconds": 0.0})
        return reason == "ended"


def _followed(
    task: Task, process: subprocess.Popen[bytes], messages: Messages, known: Sequence[str], most: float
) -> str:
    """Record the tests as they end; ``"ended"``, ``"stopped"`` if a test did not end, or ``""`` if the call ends."""
    while True:
        running = process.poll() is None
        for message in messages.read():
            _declare(task, known, messages.names)
            task.add(message.pop("end"), message)
        _declare(task, known, messages.names)
        if task.remaining <= 0:
            return ""
        late = [name for name, start in messages.under_way.items() if time.monotonic() - start > most]
        if late or not running:
            reason = f"it did not end within {most:.0f} s" if late else f"its process ended: {process.returncode}"
            for name in late or list(messages.under_way):
                task.add(name, {"error": reason, "seconds": round(time.monotonic() - messages.under_way[name], 1)})
            return "ended" if not late and not messages.under_way else "stopped"
        time.sleep(POLL)


def _declare(task: Task, known: Sequence[str], found: Sequence[str]) -> None:
    names = [*known, *(name for name in found if name not in known)]
    if found and names != task.report.names.get(task.stage.name):
        task.declare(names)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process with its workers."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, kind)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                continue
    process.wait()


def tables(every: Mapping[str, Mapping[str, Result]]) -> str:
    """The number of tests that have passed, by file."""
    counts: dict[str, int] = {}
    for name in every.get("tests", {}):
        file = name.partition("::")[0]
        counts[file] = counts.get(file, 0) + 1
    return table("Tests that have passed", ["file", "tests"], [[f"`{file}`", str(n)] for file, n in counts.items()])


def stage(folder: Path = FOLDER) -> Stage:
    """The stage of the tests in a folder."""
    run = functools.partial(run_tests, folder=folder)
    return Stage("tests", "Tests on the GPU", run, tables, ("src", "tests", "checkpoints"))
