"""The page of a leaderboard: a table for each set of conditions, sorted by rank; its script sorts and filters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from classwise.auditing.outcomes.table import CLEAN
from classwise.core.compute.repeats import Repeats
from classwise.core.settings.config import spec_text
from classwise.reporting import formatting
from classwise.reporting.board.entries import AttackSettings
from classwise.reporting.board.published import Published
from classwise.reporting.board.result import Board
from classwise.reporting.board.tables import BoardTable, board_metrics, not_guarded
from classwise.reporting.facts.comparison_tables import selected_phrase
from classwise.reporting.facts.provenance import EARLY_STOP, GRID
from classwise.reporting.figures.dots import Value, dot_rows
from classwise.reporting.links import viewer_link
from classwise.reporting.svg import Drawing
from classwise.reporting.templating import both_widths, render
from classwise.stats import Unit
from classwise.stats.registry import Metric

MAX_ROWS = 200
"""Most rows of a page, over all its tables, so that it stays below 500 KB; ``board.csv`` has all."""
MAX_DOTS = 40
"""Most models in a figure: the first ones."""
CASCADE = "yes: each attack runs only on the images that survive all earlier ones"
DIGEST = 8
"""Digits of a hash in a table; ``board.json`` has all of them."""


class Column(NamedTuple):
    """A column: its head, the direction of its first sorting, and what it means."""

    head: str
    first: str = ""
    about: str = ""


COLUMNS = (
    Column("Model", "ascending"),
    Column("Rank", "ascending", "1 + the number of models that are significantly better; the range is its interval"),
    Column(
        "Worst class",
        "descending",
        "lowest class accuracy, with the interval of the lowest class accuracy, whichever class it is",
    ),
    Column("May be worst", "ascending", "the classes that may be the worst, that of lowest accuracy first"),
    Column("Clean", "descending", "accuracy over all images without an attack"),
    Column("Warnings", "ascending", "guards that warned about the evaluation"),
    Column("Extra data", "ascending", "whether images beside the data set's own were used for training"),
    Column("Teacher", "ascending", "the teacher, usually larger, that the training distilled"),
    Column("Network", "ascending"),
    Column("Weights", "ascending", "first digits of the SHA-256 of the weights"),
    Column("Version", "ascending", "version of classwise that made the audit"),
)
PUBLISHED = (
    Column("Model", "ascending"),
    Column("Published overall", "descending", "accuracy under AutoAttack as published, not measured by classwise"),
    Column("Published clean", "descending", "accuracy without an attack as published"),
    Column("External", "descending", "robust accuracy that another evaluation found, as RobustBench lists it"),
    Column("Data", "ascending"),
    Column("Threat", "ascending"),
    Column("Extra data", "ascending"),
    Column("Network", "ascending"),
    Column("Venue", "ascending"),
    Column("File", "ascending"),
    Column("Note", "ascending"),
)


def columns() -> list[Column]:
    """The columns of a table: `COLUMNS`, with the metrics after the classes that may be the worst."""
    place = 1 + [column.head for column in COLUMNS].index("May be worst")
    shown = [_metric_column(metric) for metric in board_metrics()[1:]]
    return [*COLUMNS[:place], *shown, *COLUMNS[place:]]


def _metric_column(metric: Metric) -> Column:
    head = f"{metric.title[:1].upper()}{metric.title[1:]}".replace(" %", "\u00a0%")
    return Column(head, "descending" if metric.higher_is_better else "ascending", metric.about)


class BoardCell(NamedTuple):
    """A cell: its text, the small text below it, the value that it is sorted by, and its hover text."""

    text: str
    span: str = ""
    sort: str = ""
    title: str = ""


def board_page(board: Board, folder: Path | None = None) -> str:
    """Render the page of a leaderboard.

    Args:
        board: the leaderboard.
        folder: that of the page, whose rows link to the viewers of their audits; None: without links.
    """
    left, tables = MAX_ROWS, []
    for number, table in enumerate(board.tables, 1):
        tables.append(_table(table, number, left, folder))
        left = max(left - len(table.entries), 0)
    models = sum(len(table.entries) for table in board.tables)
    over = ["classwise leaderboard", formatting.counted(models, "audited model")]
    level = formatting.level(board.alpha)
    return render(
        "board.html",
        {
            "title": "Leaderboard: worst-class accuracy",
            "over": [*over, formatting.counted(len(board.tables), "table")],
            "level": level,
            "tables": tables,
            "published": _published(board.published, left),
            "lowest_interval": formatting.lowest_interval_name(board.alpha),
            "population": f"{level} intervals cover new images of the same classes, not new training runs.",
        },
    )


def _table(table: BoardTable, number: int, most: int, folder: Path | None) -> dict[str, Any]:
    """Template context of a table with its first ``most`` rows."""
    about, rows = table.conditions, table.frame.to_dict("records")
    data = formatting.data_name(about.data, about.split) or "data not named"
    images = formatting.counted(about.images, "image")
    threat = (about.threat or "threat not stated") if about.attacked else "no attack"
    classes = formatting.counted(len(about.classes), "class", "classes")
    omitted = len(rows) - len(rows[:most])
    mark = f"first of {len(rows)} on these images" if table.selected else ""
    return {
        "id": f"table-{number}",
        "title": f"{data}, {threat}: {table.attacks}",
        "caption": f"{formatting.counted(len(rows), 'model')}, {images}, {classes}; accuracy in percent",
        "columns": columns(),
        "rows": [
            {
                "name": str(row["model"]),
                "mark": mark if place == table.order[0] else "",
                "cells": _cells(table, place, row),
                "viewer": viewer_link(table.audits[place], folder),
            }
            for place, row in zip(table.order, rows[:most], strict=False)
        ],
        "notes": [*_notes(table), *([f"{omitted} more rows are in board.csv."] if omitted else [])],
        "figure": both_widths(board_dots, table) if rows[:most] else None,
        "conditions": _conditions(table),
    }


def _cells(table: BoardTable, place: int, row: dict[Any, Any]) -> list[BoardCell]:
    """The cells of `columns` after the name."""
    entry, better = table.entries[place], table.better_than(place)
    possible = [row["worst_class"], *(name for name in table.may_be_worst(place) if name != row["worst_class"])]
    low, high = row["rank"], row["rank_high"]
    title = f"significantly better: {formatting.listed(better)}" if better else "no model is significantly better"
    return [
        BoardCell(str(low), f"{low}–{high}" if high > low else "", f"{low}", title),
        _metric_cell(row, "worst"),
        BoardCell(formatting.listed(possible, 4), sort=possible[0], title=formatting.listed(possible, 40)),
        *(_metric_cell(row, metric.name, metric.unit) for metric in board_metrics()[1:]),
        _metric_cell(row, "clean"),
        _warnings(entry.guards, [warning.name for warning in entry.warnings], entry.guards_not_run),
        _known(entry.extra_data),
        BoardCell(entry.teacher or formatting.NONE, sort=entry.teacher),
        BoardCell(entry.network or formatting.NONE, sort=entry.network),
        BoardCell(entry.model_sha256[:DIGEST] or formatting.NONE, "", entry.model_sha256, entry.model_sha256),
        BoardCell(entry.version or formatting.NONE, sort=entry.version),
    ]


def _metric_cell(row: dict[Any, Any], name: str, unit: Unit = "fraction") -> BoardCell:
    value = float(row[name])
    if math.isnan(value):
        return BoardCell(formatting.NONE)
    span = formatting.span_in_unit(row[f"{name}_low"], row[f"{name}_high"], unit)
    return BoardCell(formatting.in_unit(value, unit), "" if span == formatting.NONE else span, f"{value:.6g}")


def _percent(value: float | None) -> str:
    return formatting.NONE if value is None else formatting.bare_percent(value)


def _warnings(guards: str | None, names: list[str], not_run: tuple[str, ...]) -> BoardCell:
    """The guards that warned; else whether guards ran."""
    missing = f"without a result: {formatting.listed(not_run, 40)}" if not_run else ""
    if names:
        return BoardCell(formatting.listed(names, 3), "", f"{len(names)}", "; ".join(filter(None, (*names, missing))))
    text = not_guarded(guards) or "none"
    return BoardCell(
        text, f"{len(not_run)} without a result" if not_run and guards != "off" else "", f"0 {text}", missing
    )


def _known(value: bool | None) -> BoardCell:
    text = formatting.NONE if value is None else "yes" if value else "no"
    return BoardCell(text, sort="" if value is None else text, title="not stated" if value is None else "")


def _notes(table: BoardTable) -> list[str]:
    """What is known about the attacks, and how the models of this table were compared."""
    notes = [table.caveat] if table.caveat else []
    if table.selected is None:
        return notes
    phrase = selected_phrase(table.selected, table.alpha, ranked=True)
    selected = f"{phrase}. Other intervals are of a model chosen beforehand."
    pairs = len(table.entries) * (len(table.entries) - 1) // 2
    level = formatting.level(table.alpha)
    how = {
        "all": "on the same images, paired",
        "some": "paired on the same images where the outcomes of both are known, else by their two intervals",
        "none": "by their two intervals, since rows from JSON files have no outcomes of single images",
    }[table.paired]
    counted = formatting.counted(pairs, "pair")
    differences = f"Differences in worst-class accuracy: {counted}, {how}; joint confidence {level} (Bonferroni)."
    return [*notes, selected, differences]


def _conditions(table: BoardTable) -> list[tuple[str, str]]:
    about = table.conditions
    images = f"{formatting.count(about.images)}: {_class_images(about.class_images)}"
    items = [
        ("Data", formatting.data_name(about.data, about.split)),
        ("Data SHA-256", about.data_sha256 or "not stated"),
        ("Images", images),
        ("Classes", formatting.listed(about.classes, 20)),
        ("Threat", about.threat or "not stated"),
        ("Radii SHA-256", about.radii_sha256),
        *((f"Attack {attack.label}", _attack_text(attack)) for attack in about.attacks if attack.label != CLEAN),
        ("Early stop", "not stated" if about.early_stop is None else EARLY_STOP[about.early_stop]),
        (
            "Cascade",
            CASCADE if about.cascade else "no",
        ),
        (
            "Repeats",
            "" if about.repeats == 1 else f"correct if {Repeats(about.repeats, about.repeat_rule)} are correct",
        ),
        ("Grid", "" if about.grid is None else GRID),
    ]
    return [(name, text) for name, text in items if text]


def _attack_text(attack: AttackSettings) -> str:
    """The settings of an attack, and the code of the user that it runs."""
    settings = "settings not stated" if attack.spec is None else spec_text(attack.spec)
    return "; ".join([settings, *(f"{module} SHA-256 {digest[:12]}" for module, digest in attack.code.items())])


def _class_images(counts: tuple[int, ...]) -> str:
    low, high = min(counts), max(counts)
    return f"{formatting.count(low)}{f' to {formatting.count(high)}' if high > low else ''} of each class"


def board_dots(table: BoardTable, *, width: float | None = None) -> Drawing:
    """Worst-class and overall accuracy of the first models of a table, with intervals."""
    rows = table.frame.to_dict("records")[:MAX_DOTS]
    images = dict(zip(table.conditions.classes, table.conditions.class_images, strict=True))
    values = [
        [
            Value(row[name], row[f"{name}_low"], row[f"{name}_high"], count)
            for name, count in (("worst", images[row["worst_class"]]), ("overall", row["n"]))
        ]
        for row in rows
    ]
    names = [str(row["model"]) for row in rows]
    return dot_rows("Accuracy, percent", names, ("Worst class", "Overall"), values, alpha=table.alpha, width=width)


def _published(published: tuple[Published, ...], most: int) -> dict[str, Any] | None:
    """Template context of the published accuracies; None if there are none."""
    if not published:
        return None
    shown = published[: max(most, 1)]
    rows = [
        {
            "name": entry.name,
            "mark": "",
            "viewer": "",
            "cells": [
                *(
                    BoardCell(_percent(share), sort="" if share is None else f"{share:.6g}")
                    for share in (entry.overall, entry.clean, entry.external)
                ),
                *(BoardCell(text or formatting.NONE, sort=text) for text in (entry.data, entry.threat)),
                _known(entry.extra_data),
                *(
                    BoardCell(text or formatting.NONE, sort=text)
                    for text in (entry.network, entry.venue, entry.file, entry.note)
                ),
            ],
        }
        for entry in shown
    ]
    omitted = len(published) - len(shown)
    return {"columns": PUBLISHED, "rows": rows, "omitted": f"{omitted} more rows are in board.json." if omitted else ""}
