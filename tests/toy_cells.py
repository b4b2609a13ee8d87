"""Cells, a clock and a machine for the tests of the GPU benchmarks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.cells import RESULTS, Report, Result, Stage, Task, Timer, run_cells

HERE: dict[str, Any] = {
    "device": "pretended",
    "memory": "16 GiB",
    "driver": "580.1",
    "cuda": "13.0",
    "cudnn": 91000,
    "torch": "2.11.0",
    "python": "3.12.3",
    "classwise": "0.1.0",
    "cores": 16,
    "commit": "f00",
    "modified": False,
}


class Clock:
    """A clock that only functions advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def toy(cells: Mapping[str, Callable[[Timer], Result]], name: str = "toy") -> Stage:
    def tables(every: Mapping[str, Mapping[str, Result]]) -> str:
        return " ".join(f"{cell}={result.get('n')}" for cell, result in every[name].items()) + "\n"

    return Stage(name, "Toy", functools.partial(run_cells, cells=cells), tables)


def report_of(folder: Path, *stages: Stage, machine: Mapping[str, Any] = HERE, sources: str = "abc") -> Report:
    """The report of a new call, which continues from the file in the folder."""
    report = Report(folder, stages, machine, {stage.name: sources for stage in stages}, "make gpu")
    report.read(folder / RESULTS)
    return report


def call(folder: Path, *stages: Stage, **options: Any) -> Report:
    """Run the stages once, like the command."""
    task = {name: options.pop(name) for name in ("end", "clock") if name in options}
    report, fresh = report_of(folder, *stages, **options), set[tuple[str, str]]()
    for again in (False, True):
        for stage in stages:
            stage.run(Task(report, stage, "cpu", again=again, fresh=fresh, **task))
    report.write()
    return report
