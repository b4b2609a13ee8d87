"""The page of a worst-class search."""

from __future__ import annotations

from typing import Any

from classwise.auditing.worst_class.result import WorstClass
from classwise.reporting import formatting
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.provenance import attack_settings, flat
from classwise.reporting.sentences import Headline
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import markup, render

MOST_ROWS = 200
"""Rows of the table on a page."""
MOST_DOTS = 40
"""Classes in the figure."""


def worst_class_page(result: WorstClass) -> str:
    """The page of a worst-class search: the answer, its guarantee, every class, and the passes that it took."""
    return render("worst-class.html", _context(result))


def _context(result: WorstClass) -> dict[str, Any]:
    meta, verdict = result.meta, result.verdict
    where = " ".join(filter(None, (meta.data, meta.split)))
    over = ["classwise worst-class search", meta.model, where, meta.threat]
    found = worst_class_headline(result)
    at = f"{formatting.percent(verdict.estimate)} ({formatting.interval(verdict.low, verdict.high, verdict.alpha)})"
    hidden = len(result.by_class) - MOST_DOTS
    return {
        "title": f"{meta.model or 'Worst class'}: {''.join(found)}",
        "over": [*filter(None, over), formatting.counted(len(result.images), "image")],
        "headline": found,
        "lead": f"Lowest estimated robust accuracy: {result.worst}, {at}.",
        "guarantee": f"{result.sentence[:1].upper()}{result.sentence[1:]}.",
        "figure": markup(class_estimates(result)),
        "caption": (
            f"Robust accuracy in percent: the estimate and its {formatting.level(verdict.alpha)} interval, valid for "
            f"all classes together.{f' Shown are the {MOST_DOTS} classes of lowest estimate.' if hidden > 0 else ''}"
        ),
        "population": "Intervals speak of these images and this suite and seed, over the random order of the samples.",
        "classes": class_table(result).first(MOST_ROWS),
        "cost": cost(result),
        "settings": _settings(result),
    }


def worst_class_headline(result: WorstClass) -> Headline:
    """Name the worst class, or all classes that may be it."""
    possible = result.possibly
    if (result.by_class["n"] > 0).sum() == 1:
        return Headline("The only class with images is ", result.worst, "")
    if len(possible) == 1:
        return Headline("The worst class is ", possible[0], "")
    return Headline(f"The worst class is one of {formatting.count(len(possible))}: ", formatting.listed(possible), "")


def cost(result: WorstClass) -> str:
    """The passes of the search, and the share of a full audit's that it saved."""
    full, passes = result.full_audit_passes, formatting.counted(result.passes, "pass", "passes")
    rounds = formatting.counted(result.rounds, "round")
    saved = formatting.percent(max(1 - result.passes / full, 0.0), 0)
    return (
        f"The search took {passes} of one image in {rounds} of sampling. A full audit would take about "
        f"{formatting.count(round(full))}; {saved} of them were saved."
    )


def class_estimates(result: WorstClass) -> Drawing:
    """The estimate of each class with its interval, the lowest first."""
    rows = result.by_class[result.by_class["n"] > 0].sort_values("estimate", kind="stable").head(MOST_DOTS)
    values = [[Value(row["estimate"], row["low"], row["high"], int(row["n"]))] for _, row in rows.iterrows()]
    names = [str(name) for name in rows.index]
    alpha = result.verdict.alpha
    return dot_rows("Estimated robust accuracy, %", names, ["estimate"], values, alpha=alpha, width=ROW_WIDTH)


def class_table(result: WorstClass) -> Table:
    """A row per class with images, the lowest estimate first."""
    first, level = result.meta.applicable[1], formatting.level(result.verdict.alpha)
    rows = []
    for name, row in result.by_class[result.by_class["n"] > 0].sort_values("estimate", kind="stable").iterrows():
        estimate = Cell(formatting.bare_percent(row["estimate"]), formatting.span(row["low"], row["high"]))
        cells = [
            Cell(formatting.count(row["n"])),
            Cell(formatting.bare_percent(row["clean"])),
            Cell(formatting.bare_percent(row["first"])),
            estimate,
            Cell(formatting.count(row["unsettled"])),
            Cell("yes" if row["may_be_worst"] else ""),
        ]
        rows.append(Row(str(name), cells, weak=bool(row["may_be_worst"])))
    return Table(
        "Every class",
        ("class", "n", "clean, %", f"{first}, %", "all attacks, %", "undecided images", "may be the worst"),
        rows,
        f"Small: {level} intervals for these images, valid for all classes together. Undecided images survived the "
        "attacks that ran on them; the other attacks of the suite did not run on them.",
    )


def _settings(result: WorstClass) -> list[tuple[str, str]]:
    meta, verdict = result.meta, result.verdict
    items = [
        ("Data", " ".join(filter(None, (meta.data, meta.split)))),
        ("Data SHA-256", meta.data_hash),
        ("Model", meta.model),
        ("Model SHA-256", meta.model_hash),
        ("Threat", meta.threat or ""),
        *attack_settings(meta),
        ("Confidence", formatting.level(verdict.alpha)),
        ("Tolerance", f"{100 * verdict.tolerance:.6g} points"),
        ("Finished", "yes" if verdict.settled else "no: the search was stopped before the classes were separated"),
        ("Seed", str(meta.seed)),
        ("Gradients", flat(meta.precision)),
        ("Images at once", str(meta.batch_size)),
        ("Seconds", f"{result.seconds:.6g}"),
    ]
    return [(name, text) for name, text in items if text]
