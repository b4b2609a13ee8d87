"""Stages made of cells: a time limit for each cell, resumption from a JSON file, and the frame of the pages."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import NOT_COMPARED
from benchmarks.pairing import Timing, paired
from classwise.core.errors import ClasswiseError
from classwise.core.storage import write_text

SECONDS = 90.0
"""The time limit of a cell."""
Result = dict[str, Any]
"""What a cell measures: values of JSON."""


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
    """A stage of the benchmarks.

    Args:
        name: name of its files.
        title: heading of its page.
        cells: the cells by name, in order.
        tables: the text of the page from the results of the finished cells.
    """

    name: str
    title: str
    cells: Mapping[str, Callable[[Timer], Result]]
    tables: Callable[[Mapping[str, Result]], str]


def run_stage(
    stage: Stage,
    folder: Path,
    machine: Mapping[str, Any],
    command: str,
    device: str,
    clock: Callable[[], float] = time.perf_counter,
) -> bool:
    """Run the cells that are not finished, and write the JSON file and the page after each.

    A cell that fails is saved with its error, and repeated when the stage is run again.

    Returns:
        Whether every cell has finished.
    """
    file = folder / f"{stage.name}.json"
    if differ := differences(file, machine):
        print(f"{stage.name}: measured again, since {file} is of another {', '.join(differ)}", flush=True)
    cells = {name: cell for name, cell in saved(file, machine).items() if "result" in cell}
    for name, run in stage.cells.items():
        if name in cells:
            print(f"{stage.name}: {name}: finished before", flush=True)
            continue
        timer, started = Timer(device, clock=clock), clock()
        try:
            cell: dict[str, Any] = {"result": run(timer)}
        except (RuntimeError, ClasswiseError) as error:  # such as too little memory, or a failure of the compiler
            cell = {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
        cells[name] = cell | {"seconds": round(clock() - started, 1)}
        print(f"{stage.name}: {name}: {cell.get('error', 'finished')}, {cells[name]['seconds']} s", flush=True)
        ordered = {each: cells[each] for each in stage.cells if each in cells}
        content = {"machine": machine, "command": command, "date": f"{datetime.now(UTC):%Y-%m-%d}", "cells": ordered}
        write_text(file, json.dumps(content, indent=2) + "\n")
        write_text(file.with_suffix(".md"), page(stage, content))
    return all("result" in cells[name] for name in stage.cells)


def differences(file: Path, machine: Mapping[str, Any]) -> list[str]:
    """The entries of `machine` in which the saved cells were measured elsewhere, or with other code."""
    if not file.is_file():
        return []
    before = json.loads(file.read_text(encoding="utf-8"))["machine"]
    compared = [name for name in {**before, **machine} if name not in NOT_COMPARED]
    return [name for name in compared if before.get(name) != machine.get(name)]


def saved(file: Path, machine: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The saved cells of a stage; none if they are of another device, of other versions or of other code."""
    if not file.is_file() or differences(file, machine):
        return {}
    return dict(json.loads(file.read_text(encoding="utf-8"))["cells"])


def page(stage: Stage, content: Mapping[str, Any]) -> str:
    """The page of a stage from the content of its JSON file."""
    machine, cells = content["machine"], content["cells"]
    modified = {True: ", modified", False: "", None: ", without a repository"}[machine["modified"]]
    rows = {
        "device": f"{machine['device']}, {machine['memory']}",
        "driver, CUDA, cuDNN": f"{machine['driver']}, {machine['cuda']}, {machine['cudnn']}",
        "torch, Python, cores": f"{machine['torch']}, {machine['python']}, {machine['cores']}",
        "classwise": f"{machine['classwise']}, commit {machine['commit']}{modified}, sources {machine['sources']}",
        "command": f"`{content['command']}`",
        "date": content["date"],
    }
    lines = [f"# {stage.title}", "", "| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows.items())]
    results = {name: cell["result"] for name, cell in cells.items() if "result" in cell}
    notes = [f"`{name}` has failed: {cell['error']}." for name, cell in cells.items() if "error" in cell]
    if len(results) < len(stage.cells):
        notes.insert(0, f"{len(results)} of {len(stage.cells)} cells have finished.")
    notes += [
        f"`{name}`: {result['rounds']} of {result['planned']} rounds, to end within {SECONDS:.0f} s."
        for name, result in results.items()
        if result.get("rounds", 0) < result.get("planned", 0)
    ]
    notes += [f"`{name}` took {cell['seconds']} s." for name, cell in cells.items() if cell["seconds"] > SECONDS]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), *[""][: len(notes)], stage.tables(results)])
