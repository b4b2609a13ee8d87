"""The text of each result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from classwise.auditing.compare.compare import Crossing
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.curve.result import Curve
from classwise.auditing.power_plan import PowerPlan
from classwise.auditing.run.result import Audit
from classwise.auditing.weakness import Weakness
from classwise.auditing.worst_class.result import WorstClass
from classwise.core.progress.display import duration
from classwise.reporting import formatting
from classwise.reporting.board.result import Board
from classwise.reporting.board.tables import BoardTable, board_metrics, not_guarded
from classwise.reporting.facts.audit_tables import legend
from classwise.reporting.facts.comparison_tables import selected_phrase
from classwise.reporting.facts.provenance import with_weights
from classwise.reporting.facts.sentences import objective_caveat
from classwise.reporting.formatting import bare_percent, bracketed
from classwise.reporting.pages.curve import radius_note, radius_table
from classwise.reporting.pages.power_plan import SMOOTHED, plan_table, shown_points
from classwise.reporting.text.audit import audit_parts, weakness_parts
from classwise.reporting.text.comparison import comparison_parts
from classwise.reporting.text.layout import TextTable, in_unit, joined, spanned_rows


def board_parts(board: Board) -> Iterator[str | TextTable]:
    """A leaderboard: its tables, and the number of published accuracies."""
    for number, table in enumerate(board.tables, 1):
        yield from _board_table(table, f"table {number}: " if len(board.tables) > 1 else "")
    if board.tables:
        yield f"beside worst: {formatting.lowest_interval_name(board.alpha)}, for new images"
    if board.published:
        yield f"{len(board.published)} published overall accuracies, which have no rank"


def _board_table(table: BoardTable, number: str) -> Iterator[str | TextTable]:
    """A table with its number, if there are several, and its conditions, a row per model."""
    about, level, others = table.conditions, formatting.level(table.alpha), board_metrics()[1:]
    rows = [
        (
            row["rank"],
            row["model"],
            bare_percent(row["worst"]),
            bracketed(row["worst_low"], row["worst_high"]),
            row["worst_class"],
            *(in_unit(row[metric.name], metric.unit) for metric in others),
            bare_percent(row["clean"]),
            row["warnings"] or not_guarded(row["guards"]),
        )
        for row in table.frame.to_dict("records")
    ]
    data = formatting.data_name(about.data, about.split) or "data not named"
    threat = f" under {about.threat or 'a threat that is not stated'}" if about.attacked else ""
    images = formatting.counted(about.images, "image")
    title = f"{number}{data}, {images}: accuracy in percent{threat}, attacks {table.attacks}"
    titles = (metric.title for metric in others)
    heads = ["rank", "model", "worst", level, "worst class", *titles, "clean", "warnings"]
    yield TextTable(heads, rows, title)
    yield legend(heads)
    if table.caveat:
        yield f"note: {table.caveat}"
    if table.selected is not None:
        yield selected_phrase(table.selected, table.alpha, ranked=True).replace("\u00a0", " ")
    yield ""


def curve_parts(found: Curve) -> Iterator[str | TextTable]:
    """A curve: per class the mean and median radius, weakest class first."""
    table = radius_table(found)
    yield TextTable(
        table.heads,
        spanned_rows(table),
        f"{with_weights(found.meta.model or found.name, found.environment)}: {table.caption}",
    )
    yield ""
    yield radius_note(found)


def worst_class_parts(result: WorstClass) -> Iterator[str | TextTable]:
    """A search: a row per class, the worst class, the guarantee, the cost."""
    rows = [
        (
            name,
            int(row["n"]),
            *(bare_percent(row[column]) for column in ("clean", "first", "estimate")),
            bracketed(row["low"], row["high"]),
            int(row["unsettled"]),
            "yes" if row["may_be_worst"] else "",
        )
        for name, row in result.by_class.iterrows()
    ]
    first = result.meta.applicable[1]
    level = f"{100 * (1 - result.verdict.alpha):.6g}"
    title = f"{with_weights(result.meta.model, result.environment)}: accuracy in percent under {result.meta.threat}"
    columns = [
        "class",
        "n",
        "clean",
        first,
        "all, estimate",
        f"all, {level} % simultaneous",
        "unsettled",
        "may be worst",
    ]
    yield TextTable(columns, rows, title, optional=("unsettled", "n", first, "clean"))
    verdict = result.verdict
    at = f"{bare_percent(verdict.estimate)} % {bracketed(verdict.low, verdict.high)}"
    yield ""
    what = "worst class" if verdict.settled else "lowest estimate so far"
    new = bracketed(*verdict.new_images)
    yield f"{what}: {result.worst}, {at} of {result.these_images}; new images {new}"
    yield f"in brackets: {formatting.lowest_interval_name(verdict.alpha)}"
    yield f"guarantee: {result.sentence}"
    if caveat := objective_caveat(result.meta):
        yield f"note: {caveat}"
    if verdict.unsettled:
        images = "1 image" if verdict.unsettled == 1 else f"{verdict.unsettled:,} images"
        yield f"unsettled: {images} that only a full audit would attack with every attack"
    percentage = 100 * result.passes / result.full_audit_passes
    part = "under 1 %" if percentage < 1 else f"about {percentage:.0f} %"
    yield f"passes: {result.passes:,}, {part} of a full audit's; {duration(result.seconds)}"


def power_plan_parts(plan: PowerPlan) -> Iterator[str | TextTable]:
    """A plan: its table, a bar for each simulated number of images, and the assumptions."""
    table = plan_table(plan)
    yield TextTable(table.heads, spanned_rows(table), table.caption, optional=("passes",))
    for (question, seeds), curve in plan.curves.items():
        yield ""
        yield f"power by images a class: {question}, {formatting.counted(seeds, 'run')}"
        for images, share in shown_points(curve):
            yield f"{images:>7,}  {'█' * round(40 * share):<40}  {100 * share:.0f} %"
    yield ""
    yield table.note
    yield from [SMOOTHED] if plan.curves else []
    yield from plan.assumptions


Result = Audit | Board | Comparison | Crossing | Curve | PowerPlan | WorstClass
_PARTS: dict[type, Any] = {
    Audit: audit_parts,
    Board: board_parts,
    Comparison: comparison_parts,
    Crossing: comparison_parts,
    Curve: curve_parts,
    PowerPlan: power_plan_parts,
    Weakness: weakness_parts,
    WorstClass: worst_class_parts,
}


def parts_of(result: Result | Weakness) -> Iterator[str | TextTable]:
    """The lines and tables that describe a result."""
    parts: Iterator[str | TextTable] = _PARTS[type(result)](result)
    return parts


def text(result: Result | Weakness) -> str:
    """A result as text, as the command that computes it prints it."""
    return joined(parts_of(result))
