"""A comparison as text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from classwise.auditing.compare.compare import Crossing
from classwise.auditing.compare.comparison import Comparison, narrowing_notes, population
from classwise.core.rounding import in_percent
from classwise.reporting import formatting
from classwise.reporting.facts.audit_tables import legend
from classwise.reporting.facts.comparison_sentences import PairFacts, comparison_warnings, decision
from classwise.reporting.facts.comparison_tables import selected_phrase
from classwise.reporting.facts.provenance import conditions, weights_name
from classwise.reporting.facts.untested import bounds_reason, bounds_table, crossing_reason, crossing_table
from classwise.reporting.formatting import bare_percent, bracketed
from classwise.reporting.text.layout import TextTable, in_unit, spanned_rows
from classwise.stats.registry import Metric, arranged


def comparison_parts(comparison: Comparison | Crossing) -> Iterator[str | TextTable]:
    """A comparison: a row per method, and each method against the first, with tests where available."""
    if isinstance(comparison, Crossing) or not comparison.complete:
        yield from _untested(comparison)
        return
    rows = [method_row(name, row) for name, row in comparison.table.iterrows()]
    columns = heads(comparison.alpha, comparison.group)
    if any(comparison.teachers.values()):
        columns.insert(1, "teacher")
        rows = [
            (name, teacher or "none", *cells)
            for (name, *cells), teacher in zip(rows, comparison.teachers.values(), strict=True)
        ]
    yield TextTable(columns, rows, f"accuracy in percent {comparison.conditions}", optional=optional_heads())
    yield legend(columns)
    yield _about(comparison)
    yield conditions(next(iter(comparison.audits.values()))[0], comparison.attack)
    yield from filter(None, (_weights(comparison),))
    if comparison.selected is not None:
        yield selected_phrase(comparison.selected, comparison.alpha, comparison.group).replace("\u00a0", " ")
    yield population(comparison.seeds)
    for note in (*comparison.notes, *narrowing_notes(comparison.table)):
        yield f"note: {note}"
    for pair in comparison.pairs:
        yield ""
        yield from _pair_lines(PairFacts.of(comparison, pair))
    yield ""
    yield from _warnings(comparison)
    for pair in comparison.pairs:
        yield decision(comparison, pair.first)


def _about(comparison: Comparison) -> str:
    """The note on the columns, for methods of several seeds."""
    level = f"{100 * (1 - comparison.alpha):g} %"
    lowest = f"; beside worst, the {formatting.lowest_interval_name(comparison.alpha, comparison.group)}"
    several = any(number > 1 for number in comparison.seeds.values())
    row, rows = formatting.singular(comparison.group), formatting.plural(comparison.group)
    lowest_of_each = f"of worst the mean of each seed's lowest {row}; worst {row} is that of the lowest mean"
    over = f"; of several seeds the means, {lowest_of_each}" if several else ""
    equal = any(len(names) > 1 for names in comparison.lowest_classes.values())
    first = f"; of equally low {rows} the first" if equal else ""
    return f"{level}: interval of the preceding number{lowest}{over}{first}"


def _weights(comparison: Comparison) -> str:
    """The weights of the methods, of several seeds the different ones; empty if they are not known."""
    found = {
        name: " and ".join(sorted({weights_name(audit.environment) for audit in audits} - {""}))
        for name, audits in comparison.audits.items()
    }
    known = [f"{name} {weights}" for name, weights in found.items() if weights]
    return f"weights: {'; '.join(known)}" if known else ""


def _untested(comparison: Comparison | Crossing) -> Iterator[str | TextTable]:
    table = crossing_table(comparison) if isinstance(comparison, Crossing) else bounds_table(comparison)
    yield TextTable(table.heads, spanned_rows(table), f"{table.caption}, {comparison.conditions}")
    yield ""
    yield from _warnings(comparison)
    yield table.note
    yield crossing_reason(comparison) if isinstance(comparison, Crossing) else bounds_reason(comparison)
    for note in comparison.notes:
        yield f"note: {note}"


def _warnings(comparison: Comparison | Crossing) -> Iterator[str]:
    for warning in comparison_warnings(comparison.audits, comparison.group):
        yield f"warning ({warning['name']}): {warning['sentence']}"


def heads(alpha: float, group: str | None) -> list[str]:
    """The heads of a table with a row for each method."""
    lowest = "worst class" if group is None else "worst group"
    level, titles = f"{100 * (1 - alpha):g} %", [metric.title for metric in _others()]
    return ["method", "seeds", "n", "clean", "overall", level, "worst", level, lowest, *titles]


def optional_heads() -> tuple[str, ...]:
    """The columns that a narrow terminal leaves out, the first one first."""
    return (*(metric.title for metric in reversed(_others())), "seeds", "n", "clean")


def method_row(name: object, row: Any) -> tuple[object, ...]:
    """The cells below `heads` for a row of `Comparison.table`."""
    return (
        name,
        int(row["seeds"]),
        int(row["n"]),
        bare_percent(row["clean"]),
        bare_percent(row["overall"]),
        bracketed(row["overall_low"], row["overall_high"]),
        bare_percent(row["worst"]),
        bracketed(row["worst_low"], row["worst_high"]),
        row["worst_class"],
        *(in_unit(row[metric.name], metric.unit) for metric in _others()),
    )


def _others() -> list[Metric]:
    """The metrics after the worst class."""
    return arranged("worst20", without=("overall", "worst", "macro", "nrr", "hmw"))


def _pair_lines(facts: PairFacts) -> list[str]:
    """The difference of two methods, in percentage points."""
    pair, alpha, kinds = facts.pair, facts.alpha, formatting.plural(facts.kind)
    lowest = f"worst {formatting.singular(facts.kind)}"
    overall, minima = pair.overall, pair.minima
    shown = [f"{name} {_points(difference)}" for name, difference in facts.significant.items()]
    spans = [f"[{_points(ends.low)}, {_points(ends.high)}]" for ends in (overall, minima)]
    p_text = formatting.NONE if math.isnan(pair.p_value) else f"{pair.p_value:.2g}"
    p_value = f"p = {p_text} ({pair.test}, not adjusted for other comparisons)"
    return [
        f"{pair.first} minus {pair.second}, in points, on the same images ({100 * (1 - alpha):g} %):",
        f"  {'overall':{len(lowest)}}  {_points(overall.value)} {spans[0]}, {p_value}",
        f"  {lowest}  {_points(minima.value)} {spans[1]}{facts.advice}",
        f"  {kinds} that differ (p below {alpha:g}, adjusted for {facts.tested} {kinds}): {', '.join(shown) or 'none'}",
        f"  {pair.population}",
    ]


def _points(share: float) -> str:
    return formatting.NONE if math.isnan(share) else f"{in_percent(share):+z.1f}"
