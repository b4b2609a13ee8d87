"""The page of a plan: the images and runs that decide questions, and the power by images."""

from __future__ import annotations

import math
from collections.abc import Iterator

from classwise.auditing.power_plan import PowerPlan
from classwise.reporting import formatting
from classwise.reporting.figures.axes import Axes
from classwise.reporting.figures.layout import Key, legend, title_lines
from classwise.reporting.palette import SERIES
from classwise.reporting.svg import Dot, Drawing, Group, Line
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import both_widths, render
from classwise.stats.power import BLOCK, PowerCurve

WIDTH, PLOT = 640.0, 250.0
LEFT, RIGHT, BOTTOM = 40.0, 16.0, 40.0
SMOOTHED = (
    "The chart is smoothed: whole images make the power a saw-tooth, so that a few images more may have a lower power, "
    f"and far from the targets a point is from as few as {BLOCK} test sets."
)
"""How the chart differs from the table."""
SPACING = 1.15
"""Least ratio of two numbers of images that are printed below each other."""


def power_plan_page(plan: PowerPlan) -> str:
    """Render the page of a plan."""
    table = plan_table(plan)
    return render(
        "power-plan.html",
        {
            "title": "Images and runs that decide a question",
            "over": ["classwise plan", formatting.counted(plan.classes, "class", "classes")],
            "headline": "Images and training runs that decide a question",
            "sentences": plan.assumptions,
            "population": f"Intervals are {formatting.level(plan.alpha)} intervals.",
            "plan": table,
            "figure": both_widths(power_curves, plan) if plan.curves else "",
            "caption": f"Share of simulated test sets that decide the question; dots: the planned numbers. {SMOOTHED}",
        },
    )


def plan_table(plan: PowerPlan) -> Table:
    """A row for each question, number of runs and power."""
    pilot = any(not math.isnan(row.expected) for row in plan.rows)
    rows = []
    for row in plan.rows:
        asked = "as is" if row.target is None else f"{100 * row.target:.0f} %"
        cells = [
            Cell(asked),
            Cell("not reached" if row.images is None else formatting.count(row.images)),
            Cell(f"{100 * row.power:.0f} %"),
            *([Cell(formatting.NONE if math.isnan(row.expected) else f"{100 * row.expected:.0f} %")] if pilot else []),
            Cell(str(row.seeds)),
            Cell(formatting.NONE if row.passes is None else formatting.count(row.passes)),
        ]
        rows.append(Row(row.question, cells))
    over = (
        " Over the pilot: mean of the power over the accuracies that the images of the audits leave open; where it is "
        "much lower, the plan depends on their estimates."
    )
    runs = " 1 run: for new images and these weights; several runs: for new training runs, too."
    several = any(row.seeds > 1 for row in plan.rows)
    return Table(
        "Images of a class and training runs of each model, and their power",
        ("question", "target", "images a class", "power", *(["over the pilot"] if pilot else []), "runs", "passes"),
        rows,
        f"Power: share of {_times(plan)} simulated test sets on which the {formatting.level(plan.alpha)} intervals "
        "and tests of audits and comparisons decide the question. Passes: forward and backward passes of the attacks "
        "on all images, runs and models, at most. As is: as stated, or as the smallest class has."
        f"{runs if several else ''}{over if pilot else ''}",
    )


def _times(plan: PowerPlan) -> str:
    return " or ".join(map(formatting.count, sorted({row.repetitions for row in plan.rows})))


def shown_points(curve: PowerCurve) -> Iterator[tuple[int, float]]:
    """The simulated numbers of images that are not close to each other, and those that reach a target."""
    needed, last = set(curve.needed.values()), 0.0
    for images, share in zip(curve.images, curve.power, strict=True):
        near = any(number is not None and number / SPACING < images < number * SPACING for number in needed)
        if images in needed or (images >= SPACING * last and not near):
            yield images, share
            last = images


def power_curves(plan: PowerPlan, *, width: float | None = None) -> Drawing:
    """Draw power by images of a class, on a logarithmic axis: a line for each question and number of runs."""
    title, width = "Power by images a class, percent", width or WIDTH
    marks, top = title_lines(title, width)
    colours = [SERIES[place % len(SERIES)] for place in range(len(plan.curves))]
    names = [f"{question}, {formatting.counted(runs, 'run')}" for question, runs in plan.curves]
    if len(names) > 1:
        keys, top = legend(
            [Key(name, f"stroke-{colour}") for name, colour in zip(names, colours, strict=True)], 0, top, width
        )
        marks += keys
    numbers = [number for curve in plan.curves.values() for number in curve.images]
    span = (math.log10(min(numbers)), math.log10(max(numbers)))
    axes = Axes(LEFT, top + 6, width - RIGHT, top + 6 + PLOT, span, (0.0, 1.0))
    levels = [(level, f"{100 * level:.0f}") for level in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    decades = sorted({factor * 10**power for power in range(5) for factor in (1, 2, 5)} | {min(numbers)})
    places = [(math.log10(number), f"{number:,}") for number in decades if span[0] <= math.log10(number) <= span[1]]
    marks += axes.grid(levels, places, "images a class", divider=0.8)
    for name, colour, curve in zip(names, colours, plan.curves.values(), strict=True):
        path = axes.path([math.log10(number) for number in curve.images], curve.power)
        reached = [number for number in curve.needed.values() if number is not None]
        at = dict(zip(curve.images, path, strict=False))
        dots = [Dot(*at[number], 3.5, f"dot-{colour}") for number in reached]
        targets = [
            f"{100 * target:.0f} % with {formatting.count(number)}" if number else f"{100 * target:.0f} % not reached"
            for target, number in curve.needed.items()
        ]
        marks.append(Group([Line(path, f"stroke-{colour}"), *dots], f"{name}: {', '.join(targets)}"))
    return Drawing(width, axes.bottom + BOTTOM, title, marks)
