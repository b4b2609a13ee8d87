"""The page and the exported files of a robustness curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.curve.result import Curve
from classwise.reporting import formatting
from classwise.reporting.facts.provenance import search_settings
from classwise.reporting.facts.sentences import Headline
from classwise.reporting.figures.radii import radius_curves, radius_unit
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import both_widths, render
from classwise.stats.counts import BoolArray, FloatArray


def curve_page(curve: Curve) -> str:
    """Render the page of a robustness curve."""
    meta, unit, facts = curve.meta, radius_unit(curve)[1], CurveFacts.of(curve)
    where = formatting.data_name(meta.data, meta.split)
    span = f"0 to {facts.highest:.4g} ({unit}), bisected {formatting.counted(curve.rounds, 'time')}"
    forward, backward = (f"{curve.frame[kind].sum():,} {kind[:-1]}" for kind in ("forwards", "backwards"))
    headline = curve_headline(facts)
    context = {
        "title": f"{meta.model or curve.name}: {''.join(headline)}",
        "over": [part for part in (meta.model, where, unit, formatting.counted(len(curve.frame), "image")) if part],
        "population": (
            f"Intervals are {formatting.level(curve.alpha)} confidence intervals for new images of the same classes, "
            "with the model fixed."
        ),
        "headline": headline,
        "lead": lead(facts),
        "figure": both_widths(radius_curves, curve),
        "caption": (
            "An image's robust radius is below the smallest radius at which an adversarial example was found, so "
            "accuracy never increases with the radius. The shaded area is the "
            f"{formatting.lowest_interval_name(curve.alpha)}, at each radius."
        ),
        "radii": radius_table(curve).first(),
        "search": search_sentence(facts),
        "settings": search_settings(
            meta,
            curve.environment,
            before=[("Search range", span)],
            after=[("Passes", f"{forward} and {backward} passes of one image each")],
        ),
    }
    return render("curve.html", context)


def radius_note(curve: Curve) -> str:
    """What the intervals of a curve are for, and how images without an adversarial example count."""
    highest = f"{radius_unit(curve)[0] * curve.highest:.3g}"
    return (
        f"The {formatting.level(curve.alpha)} intervals are for new images of the same class, each of one class, not "
        "corrected for the selection of the worst or the best class. Images without a "
        f"known adversarial example at {highest} count as {highest} in the mean."
    )


def radius_table(curve: Curve) -> Table:
    """Clean accuracy, and mean and median robust radius with intervals, per class; the worst class comes first."""
    factor, unit = radius_unit(curve)
    summary: pd.DataFrame = curve.summary
    tied = int((summary["mean"][:-1] == summary["mean"].iloc[0]).sum())

    def text(radius: float) -> str:
        return f"{factor * radius:.3g}" if radius <= curve.highest else f"over {factor * curve.highest:.3g}"

    rows = []
    for name, row in summary.iterrows():
        cells = [Cell(formatting.count(row["n"])), Cell(formatting.bare_percent(row["clean"]))]
        cells += [Cell(text(row[kind]), _ends(row, kind, text)) for kind in ("mean", "median")]
        rows.append(Row(str(name), cells, weak=tied == 1 and name == curve.weakest))
    bold = "Bold: the class with the smallest mean radius."
    if tied > 1:
        bold = f"No class is in bold, since {formatting.count(tied)} classes tie for the smallest mean radius."
    return Table(
        f"Robust radius per class: largest radius without a known adversarial example ({unit})",
        ("class", "n", "clean, %", "mean radius", "median radius"),
        rows,
        f"{bold} {radius_note(curve)}",
    )


def _ends(row: pd.Series[Any], kind: str, text: Callable[[float], str]) -> str:
    """Interval of the radius of a class; empty if all radii are equal, as the normal interval has width 0."""
    low, high = row[f"{kind}_low"], row[f"{kind}_high"]
    return "" if kind == "mean" and low == high else f"{text(low)}\u2013{text(high)}"


@dataclass(frozen=True)
class CurveFacts:
    """What the sentences of a curve's page state. Radii are in units of the page.

    Attributes:
        unit: what follows a radius in the headline: ``/255``, or nothing.
        classes: number of classes with images.
        worst: names of all classes that tie for the smallest mean radius.
        smallest: their mean radius.
        images: their number of images.
        overall: mean radius over all images.
        highest: largest radius that was searched.
        widest: width of the widest bracket; None if no image has a bracket.
        undecided: largest fraction of the images of a class, over all radii, whose brackets contain one radius.
    """

    unit: str
    classes: int
    worst: tuple[str, ...]
    smallest: float
    images: int
    overall: float
    highest: float
    widest: float | None
    undecided: float

    @staticmethod
    def of(curve: Curve) -> CurveFacts:
        """Compute the facts of a curve."""
        factor, summary = radius_unit(curve)[0], curve.summary
        means = summary["mean"].iloc[:-1]
        worst = means.index[means == means.iloc[0]]
        low, high = (curve.frame[end].to_numpy() for end in ("low", "high"))
        bracketed = np.isfinite(high) & (high > low)
        return CurveFacts(
            unit="" if factor == 1 else f"/{factor:g}",
            classes=len(means),
            worst=tuple(str(name) for name in worst),
            smallest=factor * float(means.iloc[0]),
            images=int(summary["n"].loc[worst].sum()),
            overall=factor * float(summary["mean"].iloc[-1]),
            highest=factor * curve.highest,
            widest=factor * float((high - low)[bracketed].max()) if bracketed.any() else None,
            undecided=max(
                _max_undecided(low[members & bracketed], high[members & bracketed], members.sum())
                for members in _members(curve)
            ),
        )


def curve_headline(facts: CurveFacts) -> Headline:
    """Mean robust radius overall and of the worst class, with the names of all classes that tie for the smallest."""
    number = len(facts.worst)
    smallest, overall = (f"{mean:.3g}{facts.unit}" for mean in (facts.smallest, facts.overall))
    if facts.classes == 1:
        before = f"Mean robust radius {smallest} on the only class with images ("
    elif number == facts.classes:
        before = f"Mean robust radius {smallest} on each of {formatting.count(number)} classes ("
    elif number > 1:
        before = f"Mean robust radius {overall} overall, {smallest} on each of the {number} worst classes ("
    else:
        before = f"Mean robust radius {overall} overall, {smallest} on the worst class ("
    return Headline(before, formatting.listed(facts.worst), ")")


def lead(facts: CurveFacts) -> str:
    """What the means are of, and the mean over all images."""
    return (
        f"Mean over {formatting.counted(facts.images, 'image')} of the largest radius without a known adversarial "
        f"example (at most {facts.highest:.3g}); the mean over all images is {facts.overall:.3g}."
    )


def search_sentence(facts: CurveFacts) -> str:
    """Describe the bisection and the resolution of the radii."""
    if facts.widest is None:
        return (
            "No image has a bracket: every image is misclassified without an attack, or robust at the largest radius."
        )
    return (
        "Radii were found by bisection: the attacks were repeated at the midpoint of each image's bracket, which lies "
        "between the largest radius without and the smallest radius with a successful attack. Brackets are at most "
        f"{facts.widest:.3g} wide; it is unknown whether an adversarial example exists inside them. Each radius is "
        f"inside the brackets of at most {formatting.percent(facts.undecided)} of the images of a class. Robust radii "
        "are upper bounds: other attacks may succeed at smaller radii."
    )


def _members(curve: Curve) -> Iterator[BoolArray]:
    """For each class with images, a mask (N,) of its images."""
    labels = curve.frame["label"].to_numpy()
    for label in np.unique(labels):
        yield labels == label


def _max_undecided(low: FloatArray, high: FloatArray, images: int) -> float:
    """Largest fraction of ``images``, over all radii, whose open brackets (low, high) contain the radius."""
    # Count just above each lower limit: the number of brackets only increases there.
    overlaps = ((low[:, None] <= low) & (low < high[:, None])).sum(axis=0)
    return float(overlaps.max(initial=0)) / images
