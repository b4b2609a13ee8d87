"""The report of an audit that estimates AutoAttack's accuracies from a sample (two-phase sampling)."""

from __future__ import annotations

from typing import Any

from classwise.auditing.outcomes.table import ALL
from classwise.auditing.outcomes.two_phase import TwoPhase
from classwise.auditing.run.result import Audit
from classwise.reporting import formatting
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.figures.layout import NARROW
from classwise.reporting.incomplete import attack_bounds_table
from classwise.reporting.provenance import settings_of
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import markup
from classwise.stats.two_phase import SampledAccuracy

MAX_DOTS = 40
"""Maximum number of classes in the figure."""


def headline(result: TwoPhase) -> str:
    """The overall accuracy with its interval for these images: ``AutoAttack, estimated: 38.9 % [38.4, 39.1]``."""
    return f"AutoAttack, estimated: {_with_interval(result.estimate.overall)}"


def worst_line(result: TwoPhase) -> str:
    """The worst class with the interval of the lowest accuracy of these images, and the other candidates."""
    others = [name for name in result.possibly if name != result.worst]
    candidates = f"; may also be the worst of these images: {formatting.listed(others)}" if others else ""
    return (
        f"worst class, estimated: {result.worst}, {_with_interval(result.estimate.worst)} of these images{candidates}"
    )


def new_images_line(result: TwoPhase) -> str:
    """The intervals for new images of the same classes."""
    overall, worst = result.estimate.overall, result.estimate.worst
    return (
        f"new images: overall {_interval(overall.new_low, overall.new_high)}, "
        f"lowest class accuracy {_interval(worst.new_low, worst.new_high)}"
    )


def sample_line(result: TwoPhase) -> str:
    """The size and the cost of the sample, and whether it reached the requested width."""
    sampled, survivors = (int(values.sum()) for values in (result.estimate.drawn, result.estimate.survivors))
    images = formatting.counted(survivors, "survivor")
    share = result.passes / result.full_audit_passes
    cost = "under 1 %" if share < 0.01 else f"about {100 * share:.0f} %"
    points = f"{100 * result.settle:.6g} points"
    reached = "the intervals for these images are" if result.estimate.settled else "stopped before the intervals were"
    return (
        f"{formatting.listed(result.second)} ran on {formatting.count(sampled)} of the {images} of "
        f"{formatting.listed(result.first)}; {cost} of the passes of a full audit; {reached} within {points} of the "
        "estimates"
    )


def meaning(alpha: float) -> str:
    """What the intervals and their confidence refer to."""
    return (
        f"Intervals in brackets have {formatting.level(alpha)} confidence for these images; the probability is over "
        "the random order of the sample. Those for new images of the same classes also cover the choice of the images. "
        f"Beside the worst class: {formatting.lowest_interval_name(alpha)}. "
        "The estimate is not a complete audit by AutoAttack: its accuracy on these images is known once every attack "
        "has run on every survivor."
    )


def _with_interval(accuracy: SampledAccuracy) -> str:
    return f"{formatting.bare_percent(accuracy.value)} % {_interval(accuracy.low, accuracy.high)}"


def _interval(low: float, high: float) -> str:
    return f"[{formatting.bare_percent(low)}, {formatting.bare_percent(high)}]"


def two_phase_context(audit: Audit, result: TwoPhase) -> dict[str, Any]:
    """Template context of the page of an estimate."""
    meta = audit.outcomes.meta
    where = " ".join(filter(None, (meta.data, meta.split)))
    hidden = len(result.by_class) - MAX_DOTS
    images = formatting.counted(len(audit.outcomes), "image")
    return {
        "title": f"{meta.model or audit.name}: {headline(result)}",
        "heading": headline(result),
        "over": [part for part in (f"classwise audit {audit.name}", meta.model, where, meta.threat, images) if part],
        "lead": _sentence(worst_line(result)),
        "meaning": _sentence(new_images_line(result)),
        "advice": f"{_sentence(sample_line(result))} {meaning(audit.alpha)} To complete the audit, repeat the "
        "command with --resume and without --settle.",
        "population": "Intervals for these images cover the random order of the sample, with the model fixed.",
        "figure": markup(estimates_drawing(audit, result), estimates_drawing(audit, result, width=NARROW)),
        "caption": f"The figure shows the {MAX_DOTS} classes of lowest estimate." if hidden > 0 else "",
        "warnings": list(audit.warnings),
        "guards_not_run": "" if audit.guards is None else audit.guards.sentence,
        "attacks": attack_bounds_table(audit),
        "classes": estimates_table(audit, result),
        "kind": "class",
        "settings": [*settings_of(audit), ("Settle", f"{100 * result.settle:.6g} points")],
    }


def estimates_drawing(audit: Audit, result: TwoPhase, *, width: float = ROW_WIDTH) -> Drawing:
    """Dot plot of the estimates with their intervals for these images, lowest first."""
    rows = result.by_class.sort_values("estimate", kind="stable").head(MAX_DOTS)
    values = [[Value(row["estimate"], row["low"], row["high"], int(row["n"]))] for _, row in rows.iterrows()]
    names = [str(name) for name in rows.index]
    title = "Accuracy under AutoAttack, estimated, %"
    return dot_rows(title, names, ["estimate"], values, alpha=audit.alpha, width=width)


def estimates_table(audit: Audit, result: TwoPhase) -> Table:
    """Estimates per class, in label order."""
    rows = []
    for name, row in result.by_class.iterrows():
        cells = [
            Cell(formatting.count(row["n"])),
            Cell(formatting.bare_percent(row["clean"])),
            Cell(formatting.bare_percent(row["first"])),
            Cell(formatting.bare_percent(row["estimate"]), formatting.span(row["low"], row["high"])),
            Cell(formatting.span(row["new_low"], row["new_high"])),
            Cell(f"{formatting.count(row['sampled'])} of {formatting.count(row['survivors'])}"),
            Cell("yes" if row["may_be_worst"] else ""),
        ]
        rows.append(Row(str(name), cells, weak=str(name) == result.worst))
    level = formatting.level(audit.alpha)
    heads = ["class", "n", "clean", formatting.listed(result.first), f"{ALL}, estimated", "new images", "sampled"]
    note = (
        f"Each class has {level} intervals of its own: beside the estimate for these images, and for new images. The "
        f"interval of the worst class accounts for the number of classes. Sampled: survivors on which "
        f"{formatting.listed(result.second)} ran."
    )
    caption = "AutoAttack per class, estimated, percent"
    return Table(caption, [*heads, "may be the worst"], rows, note)


def _sentence(phrase: str) -> str:
    return f"{phrase[:1].upper()}{phrase[1:]}."
