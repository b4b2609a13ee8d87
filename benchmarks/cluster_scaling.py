"""Executors: overhead, memory of a worker, a sweep of 1,000 cells of which 1 % fail at first; the merge of shards."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import merging
from benchmarks.tables import conditions, table
from classwise.sweeps.executors.base import Executor
from classwise.sweeps.executors.local import Local
from classwise.sweeps.executors.ray import Ray
from classwise.sweeps.jobs import Call, Job
from classwise.sweeps.tasks import attempts

PAGE = Path(__file__).parents[1] / "docs" / "results" / "scaling.md"
CELLS, QUICK_CELLS = 40, 4
SIMULATED, QUICK_SIMULATED = 1000, 20

# A cell of the simulation sleeps. The lock of a file of its own shows whether it runs twice at once. Each 100th cell
# fails in its first attempt: by its exit status, or because its worker is killed.
CELL = """
import fcntl, os, pathlib, signal, time
folder = pathlib.Path(place)
first = not (folder / "busy").exists()
busy = open(folder / "busy", "a")
try:
    fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (folder / "twice").touch()
time.sleep(0.05)
if first and number % 200 == 7:
    os._exit(1)
if first and number % 200 == 107:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
with open(folder / "results", "a") as results:
    results.write("done\\n")
"""

# Peak memory (KiB) of the worker, the parent of the process of the cell.
MEMORY = """
import os, pathlib
status = pathlib.Path(f"/proc/{os.getppid()}/status").read_text()
peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
pathlib.Path(place, "peak").write_text(peak)
"""

NOTES = """# Scaling

`python -m benchmarks cluster-scaling`, {conditions}; load average at the start {load:.1f}.

**Overhead.** Cells that end at once. Seconds per cell are those of one worker: wall time after the first cell x workers
/ cells. A Python interpreter that ends at once takes {command:.2f} s. For Ray, the time until the first cell ends
includes the connection, not the start of the cluster.

**Memory of a worker.** The peak resident memory of the process that runs the tasks of a worker, the largest of all
cells, without the command of the cell and the other processes of Ray.

**Simulation.** {simulated:,} cells that sleep 0.05 s. Of each 200, one exits with status 1 in its first attempt, and
the worker of another gets SIGKILL. Ray repeats the task of a killed worker; all others run again in a second call, as
by `classwise sweep resume`. A cell is lost if it has no result at the end, and repeated if it has two.

**Merge.** [Sharded audits](../how-to/sharding.md) with generated outcomes: a row for each image under the clean pass
and the four attacks of AutoAttack, and a file of examples for each shard and attack. *Merge* checks, reads and
concatenates the files of the shards. *Read and tabulate* reads the merged table and computes the table of the classes.
Memory is the peak during the step minus that of the process before it.

"""


def tasks(folder: Path, count: int, program: str) -> list[Path]:
    """Write tasks that run a program with the globals ``place``, their folder, and ``number``; returns the folders."""
    file = folder / "program.py"
    file.write_text(program, encoding="utf-8")
    folders = [folder / f"{number:04}" for number in range(count)]
    for number, task in enumerate(folders):
        given: dict[str, Any] = {"path_name": str(file), "init_globals": {"place": str(task), "number": number}}
        Job(calls=(Call(function="runpy:run_path", arguments=given),)).write(task)
    return folders


@contextlib.contextmanager
def executors() -> Iterator[list[tuple[str, Executor, int]]]:
    """Names, executors and their numbers of workers; Ray is left out if it is not installed."""
    found: list[tuple[str, Executor, int]] = [("local", Local(workers=1), 1), ("local", Local(workers=2), 2)]
    if importlib.util.find_spec("ray") is None:
        yield found
        return
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield [*found, ("Ray, two nodes of one CPU", Ray(address=cluster.address), 2)]
    finally:
        cluster.shutdown()


def overhead(executor: Executor, workers: int, count: int) -> tuple[float, float]:
    """Seconds until the first cell has ended, and seconds per cell of one worker after it."""
    with tempfile.TemporaryDirectory() as folder:
        folders = tasks(Path(folder), count, "")
        started, ended = time.monotonic(), []
        for finished in executor.run(folders):
            assert finished.status == 0
            ended.append(time.monotonic())
    return ended[0] - started, (ended[-1] - ended[0]) * workers / (count - 1)


def memory(executor: Executor, count: int) -> float:
    """The largest peak memory of a worker process over cells, in MiB (Linux only)."""
    with tempfile.TemporaryDirectory() as name:
        folders = tasks(Path(name), count, MEMORY)
        assert not any(finished.status for finished in executor.run(folders))
        return max(int((folder / "peak").read_text()) for folder in folders) / 1024


def simulated(executor: Executor, count: int) -> list[str]:
    """Run a sweep of sleeping cells, then what has failed; the cells of a row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folders = tasks(Path(name), count, CELL)
        started = time.monotonic()
        failed = [finished.folder for finished in executor.run(folders) if finished.status]
        again = [finished.status for finished in executor.run(failed)]
        seconds = time.monotonic() - started
        results = [(folder / "results").read_text() if (folder / "results").exists() else "" for folder in folders]
        events = [[str(line["event"]) for line in attempts(folder)] for folder in folders]
        starts, ends = ([folder_events.count(event) for folder_events in events] for event in ("start", "end"))
        twice = sum(
            (folder / "twice").exists() or overlap(*folder_events)
            for folder, folder_events in zip(folders, events, strict=True)
        )
    assert not any(again)
    return [
        f"{count:,}",
        f"{sum(starts) - sum(ends)}",
        f"{sum(start > 1 for start in starts)}",
        f"{len(failed)}",
        f"{results.count('')}",
        f"{twice}",
        f"{sum(len(result.split()) > 1 for result in results)}",
        f"{seconds:.0f}",
    ]


def overlap(*events: str) -> bool:
    """Whether an attempt began before the end of the one before, which has an end."""
    return any(pair == ("end", "end") for pair in itertools.pairwise(events))


def interpreter_seconds(count: int) -> float:
    """Seconds of a Python interpreter that ends at once."""
    taken = []
    for _ in range(count):
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        taken.append(time.monotonic() - started)
    return statistics.median(taken)


def run(*, quick: bool) -> str:
    count, cells = (QUICK_CELLS, QUICK_SIMULATED) if quick else (CELLS, SIMULATED)
    first, second, peaks, load = [], [], [], os.getloadavg()[0]
    with executors() as known:
        for name, executor, workers in known:
            start, seconds = overhead(executor, workers, count)
            first.append([name, str(workers), str(count), f"{start:.2f}", f"{seconds:.2f}"])
            peaks.append([name, str(workers), str(QUICK_CELLS), f"{memory(executor, QUICK_CELLS):.0f} MiB"])
        for name, executor, workers in known[1:]:
            second.append([name, str(workers), *simulated(executor, cells)])
    head = ["executor", "workers", "cells"]
    ran = ["killed attempts", "cells with several attempts", "run again by the second call", "lost", "twice at once"]
    text = "\n".join(
        [
            table("Overhead", [*head, "first cell ends (s)", "seconds per cell"], first),
            table("Memory of a worker", [*head, "peak memory of a worker"], peaks),
            table("A simulated sweep", [*head, *ran, "repeated", "wall time (s)"], second),
            merging.run(quick=quick),
        ]
    )
    if not quick:
        notes = NOTES.format(conditions=conditions(), load=load, command=interpreter_seconds(10), simulated=cells)
        PAGE.write_text((notes + text).rstrip() + "\n", encoding="utf-8")
    return text
