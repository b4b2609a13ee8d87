"""Stages made of cells: their time limits, and one JSON file and page for all of them, written after each cell."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.machine import NOT_COMPARED
from benchmarks.pairing import Timing, paired
from benchmarks.tables import table
from classwise.core.errors import first_line
from classwise.core.files.storage import write_text

SECONDS = 90.0
"""The time limit of a cell, which makes as many rounds as fit."""
MOST = 180.0
"""Seconds after which a cell or a test is stopped, and has failed."""
LEAST = 15.0
"""Seconds that must be left for another cell."""
RESULTS = "results.json"
Result = dict[str, Any]
"""What a cell measures: values of JSON. With ``"passed": False`` the cell has failed."""
Cell = dict[str, Any]
"""A finished cell: its ``"result"`` or its ``"error"``, and ``"seconds"``."""


class Timer:
    """Times functions on a device within the time limit of one cell.

    Args:
        device: the device, which has finished whenever the clock is read.
        limit: in seconds from now.
        clock: in seconds.
    """

    def __init__(self, device: str, limit: float = SECONDS, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device = device
        self.clock = clock
        self._end = clock() + limit

    @property
    def remaining(self) -> float:
        """Seconds until the limit."""
        return self._end - self.clock()

    def paired(self, functions: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> Timing:
        """Time functions in turn: at most ``rounds`` times, at least once, as many times as fit."""
        return paired(functions, rounds, warm_up, self.clock, device=self.device, limit=self.remaining)

    def seconds(self, function: Callable[[], object], rounds: int) -> Result:
        """Time one function: the median over the rounds, the number of rounds, and how many were planned."""
        timing = self.paired({"": function}, rounds)
        return {"seconds": timing.median(""), "rounds": timing.rounds, "planned": rounds}


@dataclass(frozen=True)
class Stage:
    """A stage.

    Args:
        name: name in the JSON file and on the command line.
        title: heading of its part of the page.
        run: runs the cells that a `Task` asks for.
        tables: the text of its part of the page from the results of all stages, by stage and cell.
        sources: the folders whose code determines its results.
    """

    name: str
    title: str
    run: Callable[[Task], None]
    tables: Callable[[Mapping[str, Mapping[str, Result]]], str]
    sources: tuple[str, ...] = ("src", "benchmarks", "checkpoints")


class Overrun(BaseException):
    """A cell was stopped at a time limit. Not an `Exception`, which the package may handle."""


@contextlib.contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Context that raises `Overrun` after some seconds, by a signal."""

    def stop(*_: object) -> None:
        raise Overrun

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Report:
    """The cells of all stages. Every change is written into the folder: ``results.json`` and ``results.md``.

    Args:
        folder: the folder.
        stages: the stages, in order.
        machine: the machine (`machine`).
        sources: the hash of the code of each stage (`machine.sources`).
        command: the command, for the page.
    """

    folder: Path
    stages: Sequence[Stage]
    machine: Mapping[str, Any]
    sources: Mapping[str, str]
    command: str
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def read(self, file: Path) -> None:
        """Adopt the cells of another call, but none of another device, of other versions or of other code."""
        if not file.is_file():
            return
        content = json.loads(file.read_text(encoding="utf-8"))
        before = content["machine"]
        compared = [name for name in {**before, **self.machine} if name not in NOT_COMPARED]
        if differ := [name for name in compared if before.get(name) != self.machine.get(name)]:
            print(f"all is measured again, since {file} is of another {', '.join(differ)}", flush=True)
            return
        for name, saved in content["stages"].items():
            if saved["sources"] != self.sources.get(name, saved["sources"]):
                print(f"{name}: measured again, since {file} is of other code", flush=True)
            else:
                self.cells[name], self.names[name] = saved["cells"], saved["names"]

    def declare(self, stage: Stage, names: Iterable[str]) -> None:
        """Set the names of all cells of a stage, in order."""
        self.names[stage.name] = list(names)

    def add(self, stage: Stage, name: str, cell: Cell) -> None:
        """Add a finished cell, and write the files."""
        self.cells.setdefault(stage.name, {})[name] = cell
        print(f"{stage.name}: {name}: {failure(cell) or 'finished'}, {cell['seconds']} s", flush=True)
        self.write()

    def write(self) -> None:
        """Write the JSON file and the page."""
        known = [*self.names, *(name for name in self.cells if name not in self.names)]
        stages = {
            name: {
                "sources": self.sources.get(name),
                "names": self.names.get(name, []),
                "cells": self._ordered(name),
            }
            for name in known
        }
        content = {
            "machine": self.machine,
            "command": self.command,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "stages": stages,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / RESULTS, json.dumps(content, indent=1) + "\n")
        write_text(self.folder / "results.md", page(self.stages, content))

    def _ordered(self, stage: str) -> dict[str, Cell]:
        cells, names = self.cells.get(stage, {}), self.names.get(stage, [])
        order = [*(name for name in names if name in cells), *(name for name in cells if name not in names)]
        return {name: cells[name] for name in order}

    def failures(self) -> list[list[str]]:
        """Stage, cell and reason of each cell that has failed."""
        names = [stage.name for stage in self.stages]
        return [[name, *row] for name in names for row in failures(self.cells.get(name, {}))]

    def missing(self, stages: Iterable[Stage]) -> list[str]:
        """Those of the stages of which cells have not been run, with their number if it is known."""
        result = []
        for stage in stages:
            names, cells = self.names.get(stage.name), self.cells.get(stage.name, {})
            if names is None:
                result.append(stage.name)
            elif count := sum(name not in cells for name in names):
                result.append(f"{stage.name} ({count} of {len(names)})")
        return result


@dataclass
class Task:
    """The cells of a stage that a call is to run.

    Args:
        report: receives the cells.
        stage: the stage.
        device: the device.
        end: when the call ends, on the clock.
        again: whether cells are run that have failed in an earlier call, else those that have not been run.
        fresh: the cells that this call has run.
        clock: in seconds.
    """

    report: Report
    stage: Stage
    device: str
    end: float = math.inf
    again: bool = False
    fresh: set[tuple[str, str]] = field(default_factory=set)
    clock: Callable[[], float] = time.perf_counter

    @property
    def remaining(self) -> float:
        """Seconds until the call ends."""
        return self.end - self.clock()

    @property
    def known(self) -> Mapping[str, Cell]:
        """The finished cells of the stage."""
        return self.report.cells.get(self.stage.name, {})

    def wants(self, name: str) -> bool:
        """Whether a cell is to be run."""
        cell = self.known.get(name)
        if cell is None or not self.again:
            return cell is None and not self.again
        return bool(failure(cell)) and (self.stage.name, name) not in self.fresh

    def declare(self, names: Iterable[str]) -> None:
        """Set the names of all cells of the stage, in order."""
        self.report.declare(self.stage, names)

    def add(self, name: str, cell: Cell) -> None:
        """Add a finished cell."""
        self.fresh.add((self.stage.name, name))
        self.report.add(self.stage, name, cell)


def run_cells(task: Task, cells: Mapping[str, Callable[[Timer], Result]]) -> None:
    """Run cells in this process, each until it ends, fails or is stopped."""
    task.declare(cells)
    for name, run in cells.items():
        if not task.wants(name):
            continue
        if (remaining := task.remaining) < LEAST:
            return
        timer, started = Timer(task.device, clock=task.clock), task.clock()
        try:
            with stopped_after(min(MOST, remaining)):
                cell: Cell = {"result": run(timer)}
        except Overrun:
            if remaining < MOST:  # the end of the call, not of the cell
                return
            cell = {"error": f"it did not end within {MOST:.0f} s"}
        except Exception as error:  # noqa: BLE001  # such as too little memory, or a failure of the compiler
            cell = {"error": f"{type(error).__name__}: {first_line(error)}"}
        task.add(name, cell | {"seconds": round(task.clock() - started, 1)})
        if torch.device(task.device).type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.synchronize()  # raises an error if this process can no longer use the device


def failure(cell: Cell) -> str:
    """Why a cell has failed, in one line; empty if it has not."""
    if "error" in cell:
        return f"failed: {cell['error']}"
    result = cell["result"]
    return "" if result.get("passed", True) else f"failed: {result['measured']}; accepted: {result['accepted']}"


def failures(cells: Mapping[str, Cell]) -> list[list[str]]:
    """Name and reason of each cell that has failed."""
    return [[name, text.partition(": ")[2]] for name, cell in cells.items() if (text := failure(cell))]


def page(stages: Sequence[Stage], content: Mapping[str, Any]) -> str:
    """The page from the content of the JSON file: the machine, the failures, and a part for each stage."""
    machine, saved = content["machine"], content["stages"]
    modified = {True: ", modified", False: "", None: ", without a repository"}[machine["modified"]]
    rows = {
        "device": f"{machine['device']}, {machine['memory']}",
        "driver, CUDA, cuDNN": f"{machine['driver']}, {machine['cuda']}, {machine['cudnn']}",
        "torch, Python, cores": f"{machine['torch']}, {machine['python']}, {machine['cores']}",
        "classwise": f"{machine['classwise']}, commit {machine['commit']}{modified}",
        "command": f"`{content['command']}`",
        "date": content["date"],
    }
    lines = [
        "# Results on a GPU",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {text} |" for name, text in rows.items()),
    ]
    failed = [
        [stage.name, f"`{name}`", reason.replace("|", "\\|")]
        for stage in stages
        for name, reason in failures(saved.get(stage.name, {}).get("cells", {}))
    ]
    lines += ["", table("Failures", ["stage", "cell", "reason"], failed) if failed else "No cell has failed.\n"]
    every = {
        name: {key: cell["result"] for key, cell in part["cells"].items() if "result" in cell}
        for name, part in saved.items()
    }
    for stage in stages:
        part = saved.get(stage.name, {"sources": None, "names": [], "cells": {}})
        notes = _notes(part)
        lines += [f"## {stage.title}", "", *(f"- {note}" for note in notes), *[""][: len(notes)]]
        if part["cells"]:
            lines += [f"Sources {part['sources']} ({', '.join(stage.sources)}).", "", stage.tables(every)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _notes(part: Mapping[str, Any]) -> list[str]:
    names, cells = part["names"], part["cells"]
    notes = []
    if not names:
        notes.append("Not run.")
    elif len(cells) < len(names):
        notes.append(f"{len(cells)} of {len(names)} cells have been run.")
    for name, cell in cells.items():
        result = cell.get("result", {})
        if result.get("rounds", 0) < result.get("planned", 0):
            notes.append(f"`{name}`: {result['rounds']} of {result['planned']} rounds, to end within {SECONDS:.0f} s.")
        if "skipped" in result:
            notes.append(f"`{name}` was skipped: {result['skipped']}.")
        if cell["seconds"] > SECONDS:
            notes.append(f"`{name}` took {cell['seconds']} s.")
    return notes
