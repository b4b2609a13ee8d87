"""Audits that are shown without tests: across a field in which they differ, or incomplete."""

from __future__ import annotations

import math
from typing import Any, cast

from classwise.auditing.compare import Comparison, Crossing
from classwise.reporting import formatting
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import markup

LEVELS = 255
MOST_LEVELS = 64
"""Up to so many grey levels, Linf radii are printed in 255ths."""


def crossing_reason(crossing: Crossing) -> str:
    """Why nothing is tested across a field."""
    values = formatting.listed(list(crossing.levels))
    return (
        f"The audits differ in {crossing.field}: {values}. A difference between them may come from the "
        f"{crossing.field}, from the model or from both, so no difference is computed and nothing is tested."
    )


def bounds_reason(comparison: Comparison) -> str:
    """Why nothing is tested while images are not judged, and how many are."""
    images = _count(comparison.bounds["n"].max())
    return (
        f"{formatting.count(comparison.judged_by_all)} of {images} images are judged by every audit under "
        "every attack that is compared. Which images are judged first depends on the outcome (an attack that succeeds "
        "early is over early), so accuracies of these images alone would be biased: no accuracy, difference or test is "
        "given, only bounds."
    )


def crossing_table(crossing: Crossing) -> Table:
    """A row for each method and value of the field."""
    rows = []
    for place, row in crossing.table.iterrows():
        name, level = cast("tuple[str, str]", place)
        cells = [
            Cell(str(level)),
            Cell(str(int(row["seeds"]))),
            Cell(formatting.count(row["n"])),
            _cell(row, "overall"),
        ]
        rows.append(Row(str(name), [*cells, Cell(str(row["worst_class"])), _cell(row, "worst")]))
    heads = ["method", crossing.field, "seeds", "n", "overall", "lowest class", "worst"]
    note = (
        f"{_sentence(crossing.population)} Of several seeds the mean; the lowest class is that of the lowest "
        "mean, and of equal ones the first. Nothing is tested."
    )
    caption = f"Accuracy across the {crossing.field}, percent [{formatting.level(crossing.alpha)} interval]"
    return Table(caption, heads, rows, note)


def crossing_figures(crossing: Crossing) -> list[Drawing]:
    """Accuracy against the radius, a line for each method; none unless the radii are of one norm."""
    if crossing.radii is None or len(crossing.names) > len(SERIES):
        return []
    norm, radii = crossing.radii
    whole = all(abs(radius * LEVELS - round(radius * LEVELS)) < 0.01 for radius in radii)
    in_levels = norm == "Linf" and whole and max(radii) * LEVELS <= MOST_LEVELS
    factor = LEVELS if in_levels else 1
    x_label = "Linf radius, in 1/255" if in_levels else f"{norm} radius"
    place = {level: radius * factor for level, radius in zip(crossing.levels, radii, strict=True)}
    table = crossing.table

    def line(name: str, measure: str, label: str, style: str) -> Series:
        rows = table.loc[name]
        ends = ([float(value) for value in rows[f"{measure}{end}"]] for end in ("", "_low", "_high"))
        values, low, high = ends
        return Series(label, [place[str(level)] for level in rows.index], values, style, low, high)

    if len(crossing.names) == 1:
        (name,) = crossing.names
        lines = [line(name, "overall", "overall", "stroke-main"), line(name, "worst", "worst class", "stroke-weak")]
        return [line_chart(f"{name}: accuracy against the radius, percent", lines, x_label)]
    return [
        line_chart(
            f"{title} against the radius, percent",
            [
                line(name, measure, name, f"stroke-{colour}")
                for name, colour in zip(crossing.names, SERIES, strict=False)
            ],
            x_label,
        )
        for measure, title in (("overall", "Overall accuracy"), ("worst", "Worst-class accuracy"))
    ]


def bounds_table(comparison: Comparison) -> Table:
    """A row for each method: the accuracies that every completion of its audits lies between."""
    rows = []
    for name, row in comparison.bounds.iterrows():
        cells = [Cell(str(int(row["seeds"]))), Cell(_count(row["n"])), Cell(formatting.count(row["judged"]))]
        ends = [Cell(formatting.span(row[f"{each}_low"], row[f"{each}_high"])) for each in ("overall", "worst")]
        rows.append(Row(str(name), cells + ends))
    note = (
        "Bounds: the accuracy if all images that are not judged are misclassified, and if all are correct; they are no "
        "confidence intervals. Of several seeds the means of the bounds, and the known verdicts of the run with fewest."
    )
    return Table(
        "Bounds of the accuracies, percent", ["method", "seeds", "n", "verdict known", "overall", "worst"], rows, note
    )


def crossing_context(crossing: Crossing) -> dict[str, Any]:
    """What the page of audits across a field shows, its settings and warnings apart."""
    return {
        "title": f"Across {crossing.field}: {formatting.listed(crossing.names)}",
        "headline": f"Accuracy across the {crossing.field}, without tests",
        "sentences": [crossing_reason(crossing)],
        "figures": [markup(drawing) for drawing in crossing_figures(crossing)],
        "table": crossing_table(crossing),
    }


def bounds_context(comparison: Comparison) -> dict[str, Any]:
    """What the page of incomplete audits shows, its settings and warnings apart."""
    return {
        "title": f"Incomplete comparison: {formatting.listed(comparison.names)}",
        "headline": "Incomplete audits: bounds only, no comparison",
        "sentences": [*map(_sentence, comparison.gaps), bounds_reason(comparison)],
        "figures": [],
        "table": bounds_table(comparison),
    }


def _count(images: float) -> str:
    return formatting.count(images) if math.isfinite(images) else "an unknown number of"


def _cell(row: Any, measure: str) -> Cell:
    return Cell(formatting.bare_percent(row[measure]), formatting.span(row[f"{measure}_low"], row[f"{measure}_high"]))


def _sentence(phrase: str) -> str:
    return f"{phrase[:1].upper()}{phrase[1:]}."
