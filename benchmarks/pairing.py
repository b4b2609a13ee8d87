"""Paired timing: contenders take turns in one process, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of each contender, a list per contender in the order of the rounds."""

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, slow: str, fast: str) -> float:
        """The median over rounds of how many times as long ``slow`` took."""
        pairs = zip(self.seconds[slow], self.seconds[fast], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def spread(self, slow: str, fast: str) -> tuple[float, float]:
        """The lowest and the highest ratio of a round."""
        ratios = [a / b for a, b in zip(self.seconds[slow], self.seconds[fast], strict=True)]
        return min(ratios), max(ratios)


def paired(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time the contenders in turn, ``rounds`` times, the order reversed in every second round.

    The clock may be `time.process_time`, which does not run while other programs do.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm_up + rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            started = clock()
            contenders[name]()
            if turn >= warm_up:
                seconds[name].append(clock() - started)
    return Timing(seconds)


def table(title: str, header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table under a heading."""
    lines = [f"### {title}", "", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
