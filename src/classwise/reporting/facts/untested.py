"""Comparisons without tests: of audits that differ in a field of their settings, and of incomplete audits."""

from __future__ import annotations

import math
from typing import Any, cast

from classwise.auditing.compare.compare import Crossing
from classwise.auditing.compare.comparison import Comparison
from classwise.reporting import formatting
from classwise.reporting.facts.comparison_tables import worst_of
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.figures.radii import LEVELS, MAX_LEVELS
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table, share_cell
from classwise.reporting.templating import markup


def crossing_reason(crossing: Crossing) -> str:
    """Explain why differences across a field are not tested."""
    values = formatting.listed(list(crossing.levels))
    return (
        f"The audits differ in {crossing.field}: {values}. A difference in accuracy may be due to the "
        f"{crossing.field}, the model or both, so no differences are computed or tested."
    )


def bounds_reason(comparison: Comparison) -> str:
    """Explain why incomplete audits are not tested, with the number of images that all audits have judged."""
    images = _count(comparison.bounds["n"].max())
    return (
        f"{formatting.count(comparison.judged_by_all)} of {images} images are judged in every audit under every "
        "compared attack. Which images are judged first depends on the outcome (successful attacks end early), so "
        "accuracies on these images alone are biased. Only bounds are reported, no accuracies, differences or tests."
    )


def crossing_table(crossing: Crossing) -> Table:
    """Accuracies with a row per method and value of the field."""
    rows = []
    for key, row in crossing.table.iterrows():
        name, level = cast("tuple[str, str]", key)
        overall, worst = (
            share_cell(*(row[f"{measure}{end}"] for end in ("", "_low", "_high"))) for measure in ("overall", "worst")
        )
        texts = (str(level), str(int(row["seeds"])), formatting.count(row["n"]))
        rows.append(Row(str(name), [*map(Cell, texts), overall, Cell(str(row["worst_class"])), worst]))
    heads = ["method", crossing.field, "seeds", "n", "overall", worst_of(crossing.group), "worst"]
    name = formatting.lowest_interval_name(crossing.alpha, crossing.group)
    note = (
        f"{formatting.sentence(crossing.population)} Beside worst: {name}. With several seeds: mean over seeds, "
        f"of worst the mean of the lowest one of each seed; the {worst_of(crossing.group)} is named by the lowest mean "
        "(the first one if several are equal). No tests are computed."
    )
    caption = f"Accuracy by {crossing.field}, percent [{formatting.level(crossing.alpha)} interval]"
    return Table(caption, heads, rows, note)


def crossing_figures(crossing: Crossing) -> list[Drawing]:
    """Accuracy versus radius, a line per method; empty unless all radii are of one norm."""
    if crossing.radii is None or len(crossing.names) > len(SERIES):
        return []
    norm, radii = crossing.radii
    integral = all(abs(radius * LEVELS - round(radius * LEVELS)) < 0.01 for radius in radii)
    in_levels = norm == "Linf" and integral and max(radii) * LEVELS <= MAX_LEVELS
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
        lines = [
            line(name, "overall", "overall", "stroke-main"),
            line(name, "worst", worst_of(crossing.group), "stroke-weak"),
        ]
        return [line_chart(f"{name}: accuracy versus radius, percent", lines, x_label)]
    return [
        line_chart(
            f"{title} versus radius, percent",
            [
                line(name, measure, name, f"stroke-{colour}")
                for name, colour in zip(crossing.names, SERIES, strict=False)
            ],
            x_label,
        )
        for measure, title in (
            ("overall", "Overall accuracy"),
            ("worst", f"{worst_of(crossing.group, '-').capitalize()} accuracy"),
        )
    ]


def bounds_table(comparison: Comparison) -> Table:
    """Bounds per method: the range of accuracies over all possible completions of its audits."""
    rows = []
    for name, row in comparison.bounds.iterrows():
        cells = [Cell(str(int(row["seeds"]))), Cell(_count(row["n"])), Cell(formatting.count(row["judged"]))]
        ends = [Cell(formatting.span(row[f"{metric}_low"], row[f"{metric}_high"])) for metric in ("overall", "worst")]
        rows.append(Row(str(name), cells + ends))
    note = (
        "Bounds: the accuracy if all images without a verdict are misclassified, and if all are correct; they are "
        "not confidence intervals. With several seeds: means of the bounds, and the smallest number of judged images."
    )
    return Table(
        "Bounds of the accuracies, percent", ["method", "seeds", "n", "judged", "overall", "worst"], rows, note
    )


def crossing_context(crossing: Crossing) -> dict[str, Any]:
    """Template context of a comparison across a field, without settings and warnings."""
    return {
        "title": f"Comparison by {crossing.field}: {formatting.listed(crossing.names)}",
        "headline": f"Accuracy by {crossing.field}, without significance tests",
        "sentences": [crossing_reason(crossing)],
        "figures": [(markup(drawing), drawing.label) for drawing in crossing_figures(crossing)],
        "table": crossing_table(crossing),
    }


def bounds_context(comparison: Comparison) -> dict[str, Any]:
    """Template context of a comparison of incomplete audits, without settings and warnings."""
    return {
        "title": f"Incomplete comparison: {formatting.listed(comparison.names)}",
        "headline": "Incomplete audits: bounds only, no comparison",
        "sentences": [*map(formatting.sentence, comparison.gaps), bounds_reason(comparison)],
        "figures": [],
        "table": bounds_table(comparison),
    }


def _count(images: float) -> str:
    return formatting.count(images) if math.isfinite(images) else "an unknown number of"
