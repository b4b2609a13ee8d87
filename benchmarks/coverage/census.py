"""The census of everything that is printed with an interval, a p-value or a verdict, and the table of its coverage.

Each `Entry` names functions of the package, the population that their result refers to, its method, and the simulation
of its hardest regimes. `functions_with_intervals` finds the functions of the source that need an entry.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.coverage.base import Simulation
from benchmarks.tables import table
from classwise.core.files.csv_files import write_csv

SOURCE = Path(__file__).parents[2] / "src" / "classwise"
RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE, MEASURED = RESULTS / "interval-coverage.md", RESULTS / "interval-coverage.csv"
REPETITIONS, AGAIN = 1000, 5
"""Repetitions of a regime; and how many times as many, or `REPETITIONS`, of the regime with the lowest coverage."""
LEAST = 0.94
"""The least coverage of an interval at 95 %."""
_INTERVALS = re.compile(
    r"\b(Estimate|Interval|IntervalEstimator|ClassDifferences|SeedMeans|OverSeeds|Minimum|Association|MeanBound|Verdict)\b"
)
_QUANTILES = {"betainc", "betaincinv", "bdtr", "chndtr", "ndtr", "ndtri", "percentiles", "quantile", "stdtr", "stdtrit"}
"""Distribution functions, and their inverses."""
_LEVELS = {"alpha", "confidence"}
"""Names of parameters of functions that make an interval or a test."""
_PACKAGES = ("analysis", "auditing", "maite", "papers", "reporting", "stats")


class Entry(NamedTuple):
    """Functions that share a method, and the simulation that shows its coverage.

    Attributes:
        shown: what a reader sees.
        functions: the functions, such as ``stats.stratified:class_mean``; ``*`` for all of a module.
        population: what the interval is about.
        method: the method, in a few words.
        source: author and year of the method.
        simulation: simulates the regimes in which the method is most likely to fail.
        repetitions: repetitions of each regime.
    """

    shown: str
    functions: tuple[str, ...]
    population: str
    method: str
    source: str
    simulation: Simulation
    repetitions: int = REPETITIONS

    @property
    def key(self) -> str:
        """Module and name of the simulation."""
        return f"{self.simulation.__module__.rpartition('.')[2]}.{self.simulation.__name__}"


class Least(NamedTuple):
    """The regime of a simulation with the least coverage.

    Attributes:
        simulation: `Entry.key` of the simulation.
        regimes: number of regimes.
        repetitions: repetitions of the least one; 0 if the coverage is exact.
        coverage: its coverage.
        above: share of repetitions whose lower end is too high.
        below: share of repetitions whose upper end is too low.
        regime: its name.
    """

    simulation: str
    regimes: int
    repetitions: int
    coverage: float
    above: float
    below: float
    regime: str


def functions_with_intervals() -> Iterator[str]:
    """Every function that returns an interval, has a level, or uses quantiles, as ``module:name``.

    A private function is one of them only if it uses quantiles; otherwise it is a part of a public one.
    """
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(parts)
        if parts[0] not in _PACKAGES:
            continue
        yield from (f"{module}:{name}" for name in _found(ast.parse(file.read_text(encoding="utf-8")), ""))


def _found(node: ast.AST, inside: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if _has_interval(child):
                yield inside + child.name
        else:
            yield from _found(child, f"{inside}{child.name}." if isinstance(child, ast.ClassDef) else inside)


def _has_interval(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    calls = {node.func for node in ast.walk(function) if isinstance(node, ast.Call)}
    called = {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls}
    arguments = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    returned = ast.unparse(function.returns) if function.returns else ""
    public = not function.name.startswith("_") and (_INTERVALS.search(returned) or arguments & _LEVELS)
    return bool(public or called & _QUANTILES)


def missing(census: Sequence[Entry], others: Mapping[str, str]) -> list[str]:
    """Functions with intervals that no entry names, and names of entries that no function has.

    Args:
        census: the entries.
        others: functions that make no interval of their own, with the reason.
    """
    names = set(functions_with_intervals())
    entered = {name for entry in census for name in entry.functions} | set(others)
    whole = {name.removesuffix("*") for name in entered if name.endswith("*")}
    left = {name for name in names - entered if not name.startswith(tuple(whole))}
    unknown = {name for name in entered if name not in names and not name.endswith("*")}
    return sorted(left) + sorted(f"{name} does not exist" for name in unknown)


def measure(entry: Entry, repetitions: int | None = None) -> Least:
    """Simulate an entry; its least regime is repeated with other random numbers, unless it is exact."""
    regimes = list(entry.simulation(entry.repetitions if repetitions is None else repetitions))
    least = min(regimes, key=lambda regime: regime.coverage)
    if least.again is not None:
        least = least.again(max(AGAIN * least.repetitions, 1 if repetitions else REPETITIONS))
    return Least(entry.key, len(regimes), least.repetitions, least.coverage, least.above, least.below, least.name)


def read() -> dict[str, Least]:
    """The measured least coverages by simulation."""
    rows = pd.read_csv(MEASURED).itertuples(index=False)
    return {row[0]: Least(*row) for row in rows}


def write(found: Mapping[str, Least]) -> None:
    """Write the measured least coverages."""
    write_csv(MEASURED, pd.DataFrame(found.values(), columns=list(Least._fields)), float_format="%.4f")


def page(census: Sequence[Entry], found: Mapping[str, Least]) -> str:
    """The page of coverages."""
    rows = []
    for entry in census:
        least = found[entry.key]
        size = f"{least.regimes:,}, exact" if not least.repetitions else f"{least.regimes:,}"
        coverage = f"{100 * least.coverage:.1f} ({100 * least.above:.1f}, {100 * least.below:.1f})"
        about = f"{entry.method} ({entry.source})" if entry.source else entry.method
        rows.append([entry.shown, entry.population, about, size, coverage, least.regime])
    heads = ["interval or test", "population", "method (source)", "regimes", "least coverage", "in the regime"]
    notes = NOTES.format(count=len(rows), least=100 * min(least.coverage for least in found.values()))
    return notes + table("Least coverage of every interval and test at 95 %", heads, rows)


NOTES = f"""# Coverage of intervals

{{count}} intervals and tests have a coverage of at least {{least:.1f}} % at a nominal 95 %, where no other level is
stated, in the regimes where they are most likely to fail: few images, ties, accuracies near 0 and 1, many classes,
long tails.
`python -m benchmarks interval-coverage` simulates functions of the package; the regimes are in `benchmarks/coverage`.

- **Least coverage**: the share of simulated samples whose interval contains the truth, in percent, in the regime where
  it is lowest. In parentheses: the shares whose lower end is too high, and whose upper end is too low. For a test it
  is 100 minus the share of false rejections. Below {100 * LEAST:.0f} % a test of the project fails.
- The lowest regime of up to {REPETITIONS:,} samples is simulated again in {AGAIN} times as many, at least
  {REPETITIONS:,}, so that it is not lowest by chance; its standard error is 0.3 to 0.7 points.
- **Population**: what is random; without new trainings the models are fixed. Images are independent, classes are
  fixed.

"""
