"""Tables and texts of settings: those of the paper, of the authors' code and of each scale."""

from __future__ import annotations

from collections.abc import Sequence

from classwise.papers.catalogue import experiment, find
from classwise.papers.deviations import EVALUATED, Comparison, Setting, compare
from classwise.papers.run_settings import text
from classwise.papers.scales import Name
from classwise.papers.settings import TRAINING
from classwise.reporting.formatting import NONE
from classwise.reporting.tables import Cell, Row, Table

SHOWN: tuple[Name, ...] = ("full", "reduced")
"""The scales that are compared with the paper; the numbers of smoke mean nothing."""


def comparisons(item: str, trainings: int = 1) -> dict[Name, Comparison]:
    """Comparisons of a runnable item with its paper, by scale, for a number of repetitions with other seeds."""
    scales = experiment(item).scales
    return {scale: compare(item, scale, trainings) for scale in SHOWN if scale in scales}


def deviation_counts(item: str) -> str:
    """Number of deviations at each scale, such as ``full 2, reduced 14``; empty for an item that does not run."""
    if not find(item).experiment:
        return ""
    compared = comparisons(item)
    if any(one.reason for one in compared.values()):
        return "no settings"
    return ", ".join(f"{scale} {len(deviation_lines(one))}" for scale, one in compared.items())


def settings_table(item: str) -> Table | None:
    """Table of the settings of an item; equal settings of several rows share a row. None without stated settings."""
    compared = comparisons(item)
    by_scale = {scale: {(one.row, one.name): one for one in each.settings} for scale, each in compared.items()}
    keys = dict.fromkeys(key for each in by_scale.values() for key in each)
    if not keys:
        return None
    groups: dict[tuple[str, ...], list[str]] = {}
    for row, name in sorted(keys, key=lambda key: TRAINING.index(key[1]) if key[1] in TRAINING else len(TRAINING)):
        found = [each.get((row, name)) for each in by_scale.values()]
        stated = next(one for one in found if one is not None)
        values = (text(*stated.paper), NONE if stated.code is None else text(stated.code), *map(_here, found))
        groups.setdefault((name, *values), []).append(row)
    every = {row for row, _ in keys}
    rows = [Row(name, [Cell(_where(own, every)), *map(Cell, values)]) for (name, *values), own in groups.items()]
    heads = ("setting", "rows", "paper", "authors' code", *(f"here, {scale}" for scale in by_scale))
    return Table(f"{item}: settings", heads, rows)


def deviation_lines(compared: Comparison) -> list[str]:
    """Deviations of a comparison as lines of text; equal ones of several rows share a line."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in compared.deviations:
        groups.setdefault((one.setting, one.paper, one.here), []).append(one.row)
    every = {one.row for one in compared.settings}
    lines = []
    for (setting, paper, here), rows in groups.items():
        where = _where(rows, every) if any(rows) else ""
        lines.append(f"{f'{where}: ' if where and where != ALL_ROWS else ''}{setting}: {paper} (paper), {here} (here)")
    return lines


ALL_ROWS = "all"


def _here(one: Setting | None) -> str:
    return NONE if one is None else text(one.here)


def _where(rows: Sequence[str], every: set[str]) -> str:
    """Names of rows; ``all`` for all trainings."""
    trained = {row for row in every if not row.startswith(EVALUATED)}
    if not trained or not trained <= set(rows):
        return "; ".join(rows)
    return "; ".join([ALL_ROWS, *(row for row in rows if row not in trained)])
