"""Cells, a clock and a machine for the tests of the GPU benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu.cells import Result, Stage, Timer

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
    "sources": "abc",
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


def toy(cells: dict[str, Callable[[Timer], Result]]) -> Stage:
    return Stage("toy", "Toy", cells, lambda results: " ".join(f"{name}={each['n']}" for name, each in results.items()))
