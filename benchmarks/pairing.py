"""Paired timing: functions take turns in one process, so that other load on the machine affects all of them."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.ratios import Ratio, recorded
from classwise.core.files.storage import write_text


@dataclass(frozen=True)
class Timing:
    """Seconds of each function, one value per round."""

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, slow: str, fast: str, of: str = "") -> Ratio:
        """The time of ``slow`` divided by that of ``fast`` in each round, noted for the history.

        Args:
            slow: name of a function.
            fast: name of another function.
            of: what was timed, where a benchmark has several.
        """
        name = ": ".join(filter(None, (of, f"{slow} / {fast}")))
        return recorded(name, self.seconds[slow], self.seconds[fast])

    @property
    def rounds(self) -> int:
        return len(next(iter(self.seconds.values())))


def synchronise(device: torch.device | str) -> None:
    """Wait for a GPU, which still computes when a call has returned."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def paired(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    keep: Path | None = None,
    device: torch.device | str = "cpu",
    limit: float = math.inf,
) -> Timing:
    """Time the functions in turn, ``rounds`` times, with the order reversed in every second round.

    The clock may be `time.process_time`, which excludes the time of other programs; it is read when the device has
    finished. Finished rounds are written into the folder ``keep``, from which an interrupted run is resumed after
    another warm-up. After the first round, no round is started that would end later than ``limit`` seconds after the
    call, the warm-up included.
    """

    def read() -> float:
        synchronise(device)
        return clock()

    began = clock()
    names = list(functions)
    files = {} if keep is None else {turn: keep / f"{turn}.json" for turn in range(rounds)}
    finished = {turn: json.loads(file.read_text(encoding="utf-8")) for turn, file in files.items() if file.is_file()}
    for turn in range(-warm_up, rounds):
        if turn in finished or len(finished) == rounds:
            continue
        slowest = max(map(_total, finished.values()), default=0.0)
        if finished and clock() - began + slowest > limit:
            break
        round_: dict[str, float] = {}
        for name in names if turn % 2 else reversed(names):
            started = read()
            functions[name]()
            round_[name] = read() - started
        if turn >= 0:
            finished[turn] = round_
            if turn in files:
                write_text(files[turn], json.dumps(round_))
    return Timing({name: [finished[turn][name] for turn in sorted(finished)] for name in names})


def _total(seconds: Mapping[str, float]) -> float:
    return sum(seconds.values())
