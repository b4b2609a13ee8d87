"""Paired timing: functions take turns in one process, so that other load on the machine affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of each function, one value per round."""

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, slow: str, fast: str) -> float:
        """The median over rounds of the time of ``slow`` divided by that of ``fast``."""
        pairs = zip(self.seconds[slow], self.seconds[fast], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def spread(self, slow: str, fast: str) -> tuple[float, float]:
        """The lowest and the highest ratio over the rounds."""
        ratios = [a / b for a, b in zip(self.seconds[slow], self.seconds[fast], strict=True)]
        return min(ratios), max(ratios)


def paired(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time the functions in turn, ``rounds`` times, with the order reversed in every second round.

    The clock may be `time.process_time`, which excludes the time of other programs.
    """
    names = list(functions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm_up + rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            started = clock()
            functions[name]()
            if turn >= warm_up:
                seconds[name].append(clock() - started)
    return Timing(seconds)


def table(title: str, header: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table with a heading."""
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
