"""An audit as text."""

from __future__ import annotations

from collections.abc import Iterator

from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.auditing.weakness import Weakness, weakness
from classwise.reporting import formatting
from classwise.reporting.facts import sentences
from classwise.reporting.facts.audit_summary import AuditSummary, heading, shown_warnings
from classwise.reporting.facts.audit_tables import CUMULATIVE_NOTE, legend, ties_note
from classwise.reporting.facts.incomplete import report_of
from classwise.reporting.facts.provenance import with_weights
from classwise.reporting.facts.repeats import repeats_note, repeats_table
from classwise.reporting.facts.weakness_sentences import (
    NOTE,
    clearest_heading,
    failure_text,
    weakness_line,
    weakness_sentences,
)
from classwise.reporting.formatting import bare_percent, bracketed
from classwise.reporting.text.layout import TextTable, in_unit, spanned_rows
from classwise.stats.registry import arranged

ABSENT = 10
"""Maximal number of classes without images whose names are printed."""


def audit_parts(result: Audit) -> Iterator[str | TextTable]:
    """An audit: results per class and per attack, the warnings, the worst class with its interval.

    For an incomplete audit, bounds per class and attack and the numbers of judged images; of a sample, estimates.
    """
    if not result.complete:
        yield from _incomplete(result)
        yield from sentences.caveats(result)
        return
    table = result.by_class
    meta = result.outcomes.meta
    names, level = list(result.names), formatting.level(result.alpha)
    heads = [heading(meta, name) for name in names]
    rows = [
        (
            group,
            int(row["n"]),
            *(bare_percent(row[name]) for name in names),
            bracketed(row["all_low"], row["all_high"]),
        )
        for group, row in table.iterrows()
    ]
    threat = meta.threat
    model = with_weights(meta.model or result.name, result.environment)
    title = f"{model}: accuracy in percent{f' under {threat}' if threat else ''}"
    single = [head for head, name in zip(heads, names, strict=True) if name not in (CLEAN, ALL)]
    optional = [*single, "n", *heads[: names.index(ALL)]] if ALL in names else ["n"]
    yield TextTable([str(table.index.name), "n", *heads, f"all, {level}"], rows, title, optional=optional)
    if absent := [name for name in result.group_names if name not in table.index]:
        yield f"0 images: {formatting.listed(absent, ABSENT)}"
    yield ""
    yield (summary := _summary(result))
    yield legend(summary.columns)
    yield from filter(None, (ties_note((result.counts(str(name)) for name in result.by_attack.index), result.group),))
    if meta.cascade:
        yield CUMULATIVE_NOTE
    yield ""
    yield from _warnings(result)
    yield worst_line(result)
    yield interval_line(result)
    yield from filter(None, (weakness_line(weakness(result)),))
    if (found := sentences.commonest(AuditSummary.of(result).confusions[ALL])) is not None:
        yield f"commonest confusion of all classes: {sentences.commonest_phrase(found)}"
    if meta.repeats > 1:
        yield from _probabilities(result)
    yield from sentences.caveats(result)


def _incomplete(result: Audit) -> Iterator[str | TextTable]:
    """The tables and the lines of the text of an incomplete audit."""
    report, meta = report_of(result), result.outcomes.meta
    model = with_weights(meta.model or result.name, result.environment)
    for number, table in enumerate(report.tables()):
        title = ", ".join(filter(None, (model, report.state, f"under {meta.threat}" if meta.threat else "")))
        optional = table.heads[:0:-1] if number else table.heads[1:-1]  # of the attacks: the last metrics first
        yield TextTable(table.heads, spanned_rows(table, report.brackets), f"{title}: {table.caption}", optional)
        yield from filter(None, (legend(table.heads),))
        yield ""
    yield from _warnings(result)
    yield from report.lines()


def _probabilities(result: Audit) -> Iterator[str | TextTable]:
    """The probability of a correct pass per class, of an audit with several passes for each decision."""
    table = repeats_table(result)
    yield ""
    yield TextTable(table.heads, spanned_rows(table, "[{}]"), table.caption)
    yield repeats_note(result)


def _warnings(result: Audit) -> Iterator[str]:
    """The warnings, printed before the headline because they change how it is read."""
    for warning in shown_warnings(result, result.group):
        yield f"warning ({warning.name}): {warning.sentence}"


def _summary(result: Audit) -> TextTable:
    """The metrics of each attack; a narrow terminal leaves out those after the worst class, the last ones first."""
    level, others = formatting.level(result.alpha), arranged(without=("overall", "macro", "worst"))
    rows = [
        (
            heading(result.outcomes.meta, str(name)),
            int(row["n"]),
            bare_percent(row["overall"]),
            bracketed(row["overall_low"], row["overall_high"]),
            bare_percent(row["worst"]),
            row["worst_class"],
            *(in_unit(row[metric.name], metric.unit) for metric in others),
        )
        for name, row in result.by_attack.iterrows()
    ]
    titles = [metric.title for metric in others]
    heads = [
        "attack",
        "n",
        "overall",
        level,
        "worst",
        "worst class" if result.group is None else "worst group",
        *titles,
    ]
    return TextTable(heads, rows, optional=(*reversed(titles), "n", level))


def weakness_parts(facts: Weakness) -> Iterator[str]:
    """How a class fails: a sentence a line, and the clearest failures."""
    yield from weakness_sentences(facts)
    yield from filter(None, (clearest_heading(facts),))
    for failure in facts.clearest:
        yield f"  {failure_text(failure)}"
    yield NOTE


def worst_line(result: Audit) -> str:
    """Line on the worst class under all attacks: the interval of the lowest accuracy, ties, and other candidates."""
    summary, worst = AuditSummary.of(result), result.worst_class()
    equal = [summary.names[label] for label in summary.lowest[1:]]
    others = [name for name in worst.possibly if name not in {worst.name, *equal}]
    clean = sentences.dominant_clean_accuracy(summary)
    start = f"worst {formatting.singular(result.group)}"
    at = f"{bare_percent(worst.accuracy)} % {bracketed(worst.low, worst.high)}"
    parts = [f"{start}: {worst.name}, {at} of {formatting.counted(worst.count, 'image')}"]
    parts += [f"tied with {formatting.listed(equal)}"] if equal else []
    of_ties = f" of these {formatting.plural(result.group)}" if equal else ""
    parts += [f"clean accuracy{of_ties} {bare_percent(clean)} %"] if clean is not None else []
    parts += [f"other candidates: {formatting.listed(others)}"] if others else []
    return "; ".join(parts)


def interval_line(result: Audit) -> str:
    """Line that names the interval of `worst_line` and its population."""
    return f"in brackets: {formatting.lowest_interval_name(result.alpha, result.group)}, for new images"
