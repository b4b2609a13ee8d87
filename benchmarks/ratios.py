"""Ratios of paired times, and the history of those that the tables show: ``benchmarks/history.csv``."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.tables import table
from classwise.core.files.csv_files import write_csv

HISTORY = Path(__file__).parent / "history.csv"
COLUMNS = (
    "date",
    "commit",
    "size",
    "device",
    "torch",
    "benchmark",
    "ratio of",
    "median",
    "lowest",
    "highest",
    "rounds",
)
CHANGED = 0.1
"""Change of a median that is marked in the table of changes."""


@dataclass(frozen=True)
class Ratio:
    """The times of one function divided by those of another, one value for each round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({min(self.values):.2f} to {max(self.values):.2f})"


_RECORDED: dict[str, Ratio] = {}


def recorded(name: str, slow: Sequence[float], fast: Sequence[float]) -> Ratio:
    """The ratios of two functions' times in the same rounds, noted for the history under a name."""
    _RECORDED[name] = Ratio(tuple(a / b for a, b in zip(slow, fast, strict=True)))
    return _RECORDED[name]


def taken() -> dict[str, Ratio]:
    """The ratios noted since the last call, by name."""
    found = dict(_RECORDED)
    _RECORDED.clear()
    return found


def rows_of(benchmark: str, ratios: Mapping[str, Ratio], conditions: Mapping[str, str]) -> list[dict[str, str]]:
    """Rows of the history.

    Args:
        benchmark: the name of the benchmark.
        ratios: the ratios by name.
        conditions: date, commit, size, device and torch.
    """
    return [
        {
            **conditions,
            "benchmark": benchmark,
            "ratio of": name,
            "median": f"{ratio.median:.3f}",
            "lowest": f"{min(ratio.values):.3f}",
            "highest": f"{max(ratio.values):.3f}",
            "rounds": str(len(ratio.values)),
        }
        for name, ratio in ratios.items()
    ]


def read(file: Path = HISTORY) -> list[dict[str, str]]:
    """The rows of the history; none without the file."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def append(rows: Sequence[Mapping[str, str]], file: Path = HISTORY) -> None:
    """Add rows to the history; the file is replaced atomically."""
    write_csv(file, pd.DataFrame([*read(file), *rows], columns=COLUMNS))


def changes(rows: Sequence[Mapping[str, str]], before: Sequence[Mapping[str, str]]) -> str:
    """A table of ratios beside the last ones of the same size and device in the history."""
    key = ("size", "device", "benchmark", "ratio of")
    last = {tuple(row[name] for name in key): row for row in before}
    lines = []
    for row in rows:
        cells = [row["benchmark"], row["ratio of"], row["median"]]
        known = last.get(tuple(row[name] for name in key))
        if known is None:
            lines.append([*cells, "", "", ""])
            continue
        change = float(row["median"]) / float(known["median"]) - 1
        place = f"{known['date']}, {known['commit']}"
        lines.append([*cells, known["median"], place, f"{change:+.0%}{' !' if abs(change) > CHANGED else ''}"])
    header = ["benchmark", "ratio of", "median", "before", "measured", "change"]
    return table(f"Ratios and the last ones in the history; ! marks a change above {CHANGED:.0%}", header, lines)
