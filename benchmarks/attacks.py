"""Cost of each attack in each library: passes, seconds, robust accuracy, peak memory.

Times are paired in one process. Passes are counted by hooks on the model; classwise, which fuses the network only
without hooks, counts its own. Memory is measured in a separate process. The environment variables are those of
``strength``, whose measurements are used. For AutoAttack as a whole see ``python -m benchmarks autoattack``.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.implementations import BATCH, OURS, TASKS, Implementation, Task, implementations
from benchmarks.measurements import CHECKPOINT, KEEP, builder, correct_images, path_of, quiet, selected_tasks
from benchmarks.ratios import recorded
from benchmarks.strength import measurements
from benchmarks.tables import table
from classwise.core.errors import ClasswiseError

NAMES = ("pgd-20", "pgd-100", "apgd-ce", "apgd-t", "fab-t", "square", "cw", "cw-l2")
MEMORY_SECONDS = 20.0
"""Seconds of each attack during which its memory is measured; all attacks reach their peak in the first steps."""
HEADER = [
    "attack",
    "library",
    "returned image",
    "forward passes per image",
    "backward passes per image",
    "CPU s",
    "s",
    "times ours (CPU)",
    "robust accuracy",
    "peak memory, MiB",
    "images x rounds",
]


class _TimeUpError(Exception):
    """The time of the memory measurement is over."""


def _time_up(*_: object) -> None:
    raise _TimeUpError


def _status(name: str) -> float:
    """A field of ``/proc/self/status`` in MiB; on systems without that file, the peak resident set size."""
    status = Path("/proc/self/status")
    if not status.exists():
        import resource  # Windows has no such module

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def peak_memory(task: Task, implementation: Implementation, count: int) -> float:
    """Peak memory of the process minus its memory before the attack, in MiB."""
    data, x, y = correct_images(count)
    with quiet(0):
        perturb = implementation.make(builder(task, data, 0))
        x, y = x[: 2 * BATCH].clone(), y[: 2 * BATCH].clone()
        before = _status("VmRSS")
        reset = Path("/proc/self/clear_refs")
        if reset.exists():
            reset.write_text("5")  # resets the peak
        signal.signal(signal.SIGALRM, _time_up)
        signal.setitimer(signal.ITIMER_REAL, MEMORY_SECONDS)
        try:
            perturb(x, y)
        except _TimeUpError:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return _status("VmHWM") - before


def memory(task: Task, implementation: Implementation, count: int) -> float:
    """`peak_memory` in a separate process, cached in a file."""
    path = path_of(implementation, task, 0, count).with_suffix(".memory.json")
    if not path.exists():
        command = [
            sys.executable,
            "-m",
            "benchmarks.attacks",
            task.name,
            implementation.library,
            implementation.keep,
            str(count),
        ]
        output = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        ).stdout
        path.write_text(json.dumps({"mebibytes": float(output.split()[-1])}))
    return float(json.loads(path.read_text())["mebibytes"])


def rows(task: Task, count: int, rounds: int) -> list[list[str]]:
    measured = measurements(task, count, rounds)
    ours = next(samples for implementation, samples in measured.items() if implementation.library == OURS)
    lines = []
    for implementation, samples in measured.items():
        name = f"{task.name}, {implementation.keep}: {implementation.library} / {OURS}, CPU"
        is_ours = implementation.library == OURS
        ratio = (
            "1" if is_ours else str(recorded(name, [sample.cpu for sample in samples], [sample.cpu for sample in ours]))
        )
        images = len(samples[0].success)
        lines.append(
            [
                task.name,
                implementation.library,
                implementation.keep,
                f"{statistics.mean(sample.forwards for sample in samples) / images:,.1f}",
                f"{statistics.mean(sample.backwards for sample in samples) / images:,.1f}",
                f"{statistics.median(sample.cpu for sample in samples):.1f}",
                f"{statistics.median(sample.wall for sample in samples):.1f}",
                ratio,
                f"{statistics.mean(sample.robust for sample in samples):.2%}",
                f"{memory(task, implementation, count):,.0f}",
                f"{images} x {len(samples)}",
            ]
        )
    return lines


def run(*, quick: bool) -> str:
    count = 64 if quick else int(os.environ.get("IMAGES", "1000"))
    rounds = 1 if quick else int(os.environ.get("SEEDS", "3"))
    try:
        tasks = selected_tasks(quick=quick, names=NAMES)
        correct_images(count)
    except ClasswiseError as error:
        return f"The cost of attacks was skipped: {error}\n"
    print(f"measurements are saved in {KEEP}")
    lines = [row for task in tasks for row in rows(task, count, rounds)]
    notes = (
        "Passes are per correctly classified image; only these are attacked. Ratios are relative to the first row of "
        f"each attack. Memory: the growth of a process in the first {MEMORY_SECONDS:.0f} s of the attack, with batches "
        f"of {BATCH} images. AutoAttack: `python -m benchmarks autoattack`.\n"
    )
    return table(f"Cost of attacks, {CHECKPOINT}, batch {BATCH}", HEADER, lines) + "\n" + notes


def main() -> None:
    name, library, keep, count = sys.argv[1:]
    task = next(task for task in TASKS if task.name == name)
    implementation = next(
        candidate for candidate in implementations(task) if (candidate.library, candidate.keep) == (library, keep)
    )
    print(peak_memory(task, implementation, int(count)))


if __name__ == "__main__":
    main()
