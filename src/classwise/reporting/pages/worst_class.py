"""The page of a worst-class search."""

from __future__ import annotations

from classwise.auditing.worst_class.result import WorstClass
from classwise.reporting import formatting
from classwise.reporting.facts.provenance import search_settings
from classwise.reporting.facts.sentences import Headline, objective_caveat
from classwise.reporting.figures.dots import MAX_ESTIMATES, estimate_dots
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table, share_cell
from classwise.reporting.templating import both_widths, render


def worst_class_page(result: WorstClass) -> str:
    """Render the page of a worst-class search: the result, its guarantee, all classes, and the cost."""
    meta, verdict = result.meta, result.verdict
    where = formatting.data_name(meta.data, meta.split)
    finished = "yes" if verdict.settled else "no: the search was stopped before the classes were separated"
    over = ["classwise worst-class search", meta.model, where, meta.threat]
    headline = worst_class_headline(result)
    hidden = len(result.by_class) - MAX_ESTIMATES
    context = {
        "title": f"{meta.model or 'Worst class'}: {''.join(headline)}",
        "over": [*filter(None, over), formatting.counted(len(result.images), "image")],
        "headline": headline,
        "lead": (
            f"Lowest estimated robust accuracy: {result.worst}, {formatting.percent(verdict.estimate)}. "
            f"{formatting.lowest_interval_name(verdict.alpha)}: {formatting.span(verdict.low, verdict.high)}\u00a0% of "
            f"{result.these_images}, {formatting.span(*verdict.new_images)}\u00a0% of new images."
        ),
        "guarantee": formatting.sentence(result.sentence),
        "caveat": objective_caveat(result.meta),
        "figure": both_widths(class_estimates, result),
        "caption": (
            f"Estimated robust accuracy in percent, with simultaneous {formatting.level(verdict.alpha)} intervals."
            f"{f' The figure shows the {MAX_ESTIMATES} classes with the lowest estimates.' if hidden > 0 else ''}"
        ),
        "population": (
            "Intervals are for these images, this attack suite and seed; coverage is over the random sampling order. "
            "That for new images also covers the choice of the images."
        ),
        "classes": class_table(result).first(),
        "cost": cost(result),
        "settings": search_settings(
            meta,
            result.environment,
            before=[("Threat", meta.threat or "")],
            between=[
                ("Confidence", formatting.level(verdict.alpha)),
                ("Tolerance", f"{100 * verdict.tolerance:.6g} points"),
                ("Finished", finished),
            ],
            after=[("Time", f"{result.seconds:.6g} s")],
        ),
    }
    return render("worst-class.html", context)


def worst_class_headline(result: WorstClass) -> Headline:
    """Name the worst class, or all classes that may be the worst."""
    possible = result.possibly
    if (result.by_class["n"] > 0).sum() == 1:
        return Headline("The only class with images is ", result.worst, "")
    if len(possible) == 1:
        return Headline("The worst class is ", possible[0], "")
    return Headline(f"The worst class is one of {formatting.count(len(possible))}: ", formatting.listed(possible), "")


def cost(result: WorstClass) -> str:
    """The number of passes of the search, and its savings relative to a full audit."""
    full, passes = result.full_audit_passes, formatting.counted(result.passes, "pass", "passes")
    rounds = formatting.counted(result.rounds, "round")
    saved = formatting.percent(max(1 - result.passes / full, 0.0), 0)
    return (
        f"The search took {passes} of one image each in {rounds} of sampling. A full audit would take about "
        f"{formatting.count(round(full))}; the search saved {saved} of them."
    )


def class_estimates(result: WorstClass, *, width: float | None = None) -> Drawing:
    """Dot plot of the estimates with intervals, lowest first."""
    title, estimates = "Estimated robust accuracy per class, percent", result.by_class[result.by_class["n"] > 0]
    return estimate_dots(title, estimates, alpha=result.verdict.alpha, width=width)


def class_table(result: WorstClass) -> Table:
    """Estimates per class with images, lowest first."""
    first, level = result.meta.applicable[1], formatting.level(result.verdict.alpha)
    rows = []
    for name, row in result.by_class[result.by_class["n"] > 0].sort_values("estimate", kind="stable").iterrows():
        cells = [
            Cell(formatting.count(row["n"])),
            Cell(formatting.bare_percent(row["clean"])),
            Cell(formatting.bare_percent(row["first"])),
            share_cell(row["estimate"], row["low"], row["high"]),
            Cell(formatting.count(row["unsettled"])),
            Cell("yes" if row["may_be_worst"] else ""),
        ]
        rows.append(Row(str(name), cells, weak=bool(row["may_be_worst"])))
    return Table(
        "Results per class",
        ("class", "n", "clean, %", f"{first}, %", "all attacks, %", "unsettled images", "may be the worst"),
        rows,
        f"Below the accuracy under all attacks: simultaneous {level} intervals for these images. Unsettled images "
        "survived the attacks that were run on them; the other attacks of the suite were not run on them.",
    )
