"""A search for the worst class as text."""

from __future__ import annotations

from collections.abc import Iterator

from classwise.auditing.worst_class.result import WorstClass
from classwise.core.progress_display import duration
from classwise.reporting import formatting
from classwise.reporting.text.layout import TextTable, interval, percent


def worst_class_parts(result: WorstClass) -> Iterator[str | TextTable]:
    """A search: a row per class, the worst class, the guarantee, the cost."""
    rows = [
        (
            name,
            int(row["n"]),
            *(percent(row[column]) for column in ("clean", "first", "estimate")),
            interval(row["low"], row["high"]),
            int(row["unsettled"]),
            "yes" if row["may_be_worst"] else "",
        )
        for name, row in result.by_class.iterrows()
    ]
    first = result.meta.applicable[1]
    level = f"{100 * (1 - result.verdict.alpha):.6g}"
    title = f"{result.meta.model}: accuracy in percent under {result.meta.threat}"
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
    at = f"{percent(verdict.estimate)} % {interval(verdict.low, verdict.high)}"
    yield ""
    what = "worst class" if verdict.settled else "lowest estimate so far"
    new = interval(*verdict.new_images)
    yield f"{what}: {result.worst}, {at} of {result.these_images}; new images {new}"
    yield f"in brackets: {formatting.lowest_interval_name(verdict.alpha)}"
    yield f"guarantee: {result.sentence}"
    if verdict.unsettled:
        images = "1 image" if verdict.unsettled == 1 else f"{verdict.unsettled:,} images"
        yield f"unsettled: {images} that only a full audit would attack with every attack"
    percentage = 100 * result.passes / result.full_audit_passes
    part = "under 1 %" if percentage < 1 else f"about {percentage:.0f} %"
    yield f"passes: {result.passes:,}, {part} of a full audit's; {duration(result.seconds)}"
