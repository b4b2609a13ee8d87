"""A leaderboard as text."""

from __future__ import annotations

from collections.abc import Iterator

from classwise.reporting import formatting
from classwise.reporting.board.result import Board
from classwise.reporting.board.tables import BoardTable, board_metrics
from classwise.reporting.text.layout import TextTable, in_unit, interval, percent


def board_parts(board: Board) -> Iterator[str | TextTable]:
    """A leaderboard: its tables, and the number of published accuracies."""
    for table in board.tables:
        yield from _table(table)
    if board.tables:
        yield f"beside worst: {formatting.lowest_interval_name(board.alpha)}, for new images"
    if board.published:
        yield f"{len(board.published)} published overall accuracies, which have no rank"


def _table(table: BoardTable) -> Iterator[str | TextTable]:
    """A table with its conditions, a row per model."""
    about, level, others = table.conditions, formatting.level(table.alpha), board_metrics()[1:]
    rows = [
        (
            row["rank"],
            row["model"],
            percent(row["worst"]),
            interval(row["worst_low"], row["worst_high"]),
            row["worst_class"],
            *(in_unit(row[metric.name], metric.unit) for metric in others),
            percent(row["clean"]),
            row["warnings"],
        )
        for row in table.frame.to_dict("records")
    ]
    data = " ".join(filter(None, (about.data, about.split))) or "data not named"
    threat = f" under {about.threat or 'a threat that is not stated'}" if about.attacked else ""
    images = formatting.counted(about.images, "image")
    title = f"{data}, {images}: accuracy in percent{threat}, attacks {table.attacks}"
    titles = (metric.title for metric in others)
    yield TextTable(["rank", "model", "worst", level, "worst class", *titles, "clean", "warnings"], rows, title)
    yield ""
