"""`Board`: a leaderboard, with one table for each set of conditions."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from classwise.auditing.outcomes.display import RichDisplay
from classwise.core.files.csv_files import csv_text
from classwise.core.files.json_values import json_text, json_value
from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.core.files.storage import write_text
from classwise.core.settings.arguments import Level, checked
from classwise.core.version import __version__
from classwise.reporting.board.published import Published
from classwise.reporting.board.tables import BoardTable, measures


@checked
@dataclass(frozen=True, eq=False)
class Board(RichDisplay):
    """A leaderboard of audited models.

    Attributes:
        tables: one for each set of conditions; the one with the most models comes first.
        published: overall accuracies that others have published, which have no rank.
        alpha: 1 minus the coverage of the intervals, and of the ranks of each table.

    Example:
        >>> import classwise as cw
        >>> labels = [0] * 200 + [1] * 200
        >>> weak = cw.Outcomes.from_predictions(labels, attacks={"pgd": [1] * 150 + [0] * 50 + [1] * 200})
        >>> strong = cw.Outcomes.from_predictions(labels, attacks={"pgd": [0] * 150 + [1] * 250})
        >>> board = cw.board({"weak": cw.Audit(weak), "strong": cw.Audit(strong)})
        >>> board.table[["rank", "model", "worst"]].values.tolist()
        [[1, 'strong', 0.75], [2, 'weak', 0.25]]
    """

    tables: tuple[BoardTable, ...]
    published: tuple[Published, ...] = ()
    alpha: Level = 0.05

    def __repr__(self) -> str:
        models = sum(len(table.entries) for table in self.tables)
        return f"<Board: {models} models in {len(self.tables)} tables; {len(self.published)} published accuracies>"

    @cached_property
    def table(self) -> pd.DataFrame:
        """All tables below each other: the columns of `BoardTable.frame` after those of the conditions.

        These are ``table``, a number from 1, ``data``, ``split``, ``data_sha256``, ``threat``, ``attacks``,
        ``early_stop``, ``cascade``, ``repeats``, ``repeat_rule`` and ``grid``. Ranks of different tables are unrelated.
        """
        frames = []
        for number, table in enumerate(self.tables, 1):
            frame, about = table.frame.copy(), table.conditions
            columns: dict[str, Any] = {
                "table": number,
                "data": about.data,
                "split": about.split,
                "data_sha256": about.data_sha256,
                "threat": about.threat,
                "attacks": table.attacks,
                "early_stop": about.early_stop,
                "cascade": about.cascade,
                "repeats": about.repeats,
                "repeat_rule": about.repeat_rule,
                "grid": about.grid,
            }
            for place, (name, value) in enumerate(columns.items()):
                frame.insert(place, name, pd.Series([value] * len(frame), dtype=object if value is None else None))
            frames.append(frame.astype({"early_stop": object, "threat": object, "grid": object}))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def to_dict(self) -> dict[str, Any]:
        """The leaderboard as JSON values: the content of ``board.json``, which `classwise.board` reads again.

        Each row has ``entry``, what is known of the model, and ``results``, which are computed from the entries.
        Of each table, ``selected`` is `BoardTable.selected`.
        """
        tables = [
            {
                "conditions": dataclasses.asdict(table.conditions),
                "rows": _rows(table),
                "paired": table.paired,
                "selected": None if table.selected is None else table.selected.to_dict(),
            }
            for table in self.tables
        ]
        return {
            "schema_version": SCHEMA_VERSIONS["board"],
            "version": __version__,
            "unit": "fraction",
            "confidence": round(1 - self.alpha, 12),
            "tables": tables,
            "published": [dataclasses.asdict(entry) for entry in self.published],
        }

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``board.json`` and ``board.csv`` into a folder; existing files of these names are replaced.

        ``cw.report(board, path)`` writes the page. Cells of the CSV file that a spreadsheet would evaluate are
        prefixed with an apostrophe.

        Args:
            folder: output folder; created if it does not exist.

        Returns:
            The written files.

        Raises:
            ClasswiseError: if a file cannot be written.
        """
        texts = {
            "board.json": json_text(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            "board.csv": csv_text(self.table),
        }
        files = []
        for name, text in texts.items():
            files.append(Path(folder) / name)
            write_text(files[-1], text)
        return files


def _rows(table: BoardTable) -> list[dict[str, Any]]:
    """The rows of a table in the order of the ranks."""
    rows = []
    for place, row in zip(table.order, table.frame.to_dict("records"), strict=True):
        results: dict[str, Any] = {
            "rank": [int(row["rank"]), int(row["rank_high"])],
            "better": table.better_than(place),
            "worst_class": row["worst_class"],
            "may_be_worst": table.may_be_worst(place),
            **{name: _estimate(row, name) for name in measures()},
        }
        rows.append({"entry": dataclasses.asdict(table.entries[place]), "results": results})
    return rows


def _estimate(row: Mapping[Any, Any], name: str) -> dict[str, float | None] | None:
    """A measure with its interval; None where it is unknown, also as an end of the interval."""
    ends = {"value": "", "low": "_low", "high": "_high"}
    found: dict[str, float | None] = json_value({key: float(row[f"{name}{end}"]) for key, end in ends.items()})
    return None if found["value"] is None else found
