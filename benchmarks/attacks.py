"""What an attack costs in each library: passes counted, seconds, robust accuracy, peak memory.

Times are paired in one process. Passes are counted by hooks on the model; ours, which would attack another way if it
were watched, counts its own. Memory is measured in a process of its own. The environment is that of ``strength``, whose
cells are used. AutoAttack as a whole is in ``python -m benchmarks autoattack``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.cells import CHECKPOINT, KEEP, chosen, given, path_of, quiet, right
from benchmarks.contenders import BATCH, OURS, TASKS, Contender, Task, contenders
from benchmarks.pairing import table
from benchmarks.strength import cells
from classwise.core.errors import ClasswiseError

NAMES = ("pgd-20", "pgd-100", "apgd-ce", "apgd-t", "fab-t", "square", "cw", "cw-l2")
LOOK = 20.0
"""Seconds of each attack during which its memory is watched; all of them are at full size with the first steps."""
HEADER = [
    "attack",
    "library",
    "keeps",
    "forward passes an image",
    "backward",
    "CPU s",
    "s",
    "times ours (CPU)",
    "robust accuracy",
    "peak memory, MiB",
    "images x rounds",
]


class _EnoughError(Exception):
    """The time for which memory is watched is over."""


def _enough(*_: object) -> None:
    raise _EnoughError


def _status(name: str) -> float:
    """A line of the process's status, in MiB; where there is none, the most memory that it ever had."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def watch(task: Task, contender: Contender, count: int) -> float:
    """By how much the process grew beyond what it held before the attack began, at most, in MiB."""
    data, x, y = right(count)
    with quiet(0):
        perturb = contender.make(given(task, data, 0))
        x, y = x[: 2 * BATCH].clone(), y[: 2 * BATCH].clone()
        before = _status("VmRSS")
        reset = Path("/proc/self/clear_refs")
        if reset.exists():
            reset.write_text("5")  # the peak begins anew
        signal.signal(signal.SIGALRM, _enough)
        signal.setitimer(signal.ITIMER_REAL, LOOK)
        try:
            perturb(x, y)
        except _EnoughError:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return _status("VmHWM") - before


def memory(task: Task, contender: Contender, count: int) -> float:
    """As above, in a process of its own; kept like a cell."""
    path = path_of(contender, task, 0, count).with_suffix(".memory.json")
    if not path.exists():
        words = [sys.executable, "-m", "benchmarks.attacks", task.name, contender.library, contender.keep, str(count)]
        said = subprocess.run(
            words, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        ).stdout
        path.write_text(json.dumps({"mebibytes": float(said.split()[-1])}))
    return float(json.loads(path.read_text())["mebibytes"])


def rows(task: Task, count: int, rounds: int) -> list[list[str]]:
    found = cells(task, count, rounds)
    ours = next(each for contender, each in found.items() if contender.library == OURS)
    lines = []
    for contender, each in found.items():
        ratios = [a.cpu / b.cpu for a, b in zip(each, ours, strict=True)]
        images = len(each[0].success)
        lines.append(
            [
                task.name,
                contender.library,
                contender.keep,
                f"{statistics.mean(one.forwards for one in each) / images:,.1f}",
                f"{statistics.mean(one.backwards for one in each) / images:,.1f}",
                f"{statistics.median(one.cpu for one in each):.1f}",
                f"{statistics.median(one.wall for one in each):.1f}",
                f"{statistics.median(ratios):.2f}",
                f"{statistics.mean(one.robust for one in each):.2%}",
                f"{memory(task, contender, count):,.0f}",
                f"{images} x {len(each)}",
            ]
        )
    return lines


def run(*, quick: bool) -> str:
    count = 64 if quick else int(os.environ.get("IMAGES", "1000"))
    rounds = 1 if quick else int(os.environ.get("SEEDS", "3"))
    try:
        tasks = chosen(quick=quick, names=NAMES)
        right(count)
    except ClasswiseError as error:
        return f"The cost of attacks is left out: {error}\n"
    print(f"cells are kept in {KEEP}")
    lines = [row for task in tasks for row in rows(task, count, rounds)]
    said = (
        "Passes are of an image that the model has right, the only ones that are attacked. Ratios are against the "
        f"first row of each attack. Memory: the most by which a process grew in the first {LOOK:.0f} s of the attack, "
        f"on {BATCH} images at a time. AutoAttack: `python -m benchmarks autoattack`.\n"
    )
    return table(f"What attacks cost, {CHECKPOINT}, batch {BATCH}", HEADER, lines) + "\n" + said


def main() -> None:
    name, library, keep, count = sys.argv[1:]
    task = next(task for task in TASKS if task.name == name)
    contender = next(each for each in contenders(task) if (each.library, each.keep) == (library, keep))
    print(watch(task, contender, int(count)))


if __name__ == "__main__":
    main()
