"""A listener to the progress of evaluations."""

from __future__ import annotations


class Listener:
    """Records the tasks and lines of an evaluation, and interrupts it after a number of units."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.left = limit
        self.lines: list[str] = []
        self.totals: dict[str, int] = {}
        self.done: dict[str, int] = {}

    def start(self, task: str, total: int) -> None:
        self.task = task
        self.totals[task] = total
        self.done[task] = 0

    def advance(self, amount: int) -> None:
        self.done[self.task] += amount
        self.left -= amount
        if self.left < 0:
            raise KeyboardInterrupt

    def log(self, line: str) -> None:
        self.lines.append(line)
