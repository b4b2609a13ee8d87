"""The page and the files of a robustness curve."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.curve.result import Curve
from classwise.reporting import formatting
from classwise.reporting.exports import write_files
from classwise.reporting.figures.radii import radius_curves, radius_unit
from classwise.reporting.provenance import attack_settings, flat
from classwise.reporting.sentences import Headline
from classwise.reporting.tables import Cell, Row, Table
from classwise.reporting.templating import markup, render
from classwise.stats.counts import BoolArray, FloatArray

MOST_ROWS = 200
"""Rows of a table on a page."""


def curve_page(curve: Curve) -> str:
    """The page of a robustness curve."""
    return render("curve.html", _context(curve))


def export_curve(
    curve: Curve,
    folder: str | os.PathLike[str],
    formats: Collection[str] = ("csv", "md", "png", "svg"),
    *,
    raw_csv: bool = False,
) -> list[Path]:
    """Write the tables (``curve``, ``radii``) and the figure (``curve``) into a folder; old files are replaced.

    ``curve.csv`` holds the accuracy of each class at each radius with its interval, ``radii.csv`` a row per class with
    its mean and median radius. ``raw_csv`` as in `export`.

    Raises:
        ClasswiseError: for an unknown format, or if a file cannot be written.
    """
    frames = {"curve": curve.table(), "radii": curve.summary.reset_index()}
    tables, drawings = {"radii": radius_table(curve)}, {"curve": radius_curves(curve)}
    return write_files(folder, formats, frames, tables, drawings, raw_csv=raw_csv)


def radius_table(curve: Curve) -> Table:
    """A row per class, the weakest first: clean accuracy, mean and median radius, each radius with its interval."""
    factor, unit = radius_unit(curve)
    summary: pd.DataFrame = curve.summary

    def text(radius: float) -> str:
        return f"{factor * radius:.3g}" if radius <= curve.highest else f"over {factor * curve.highest:.3g}"

    rows = []
    for name, row in summary.iterrows():
        cells = [Cell(formatting.count(row["n"])), Cell(formatting.bare_percent(row["clean"]))]
        cells += [Cell(text(row[kind]), _ends(row, kind, text)) for kind in ("mean", "median")]
        rows.append(Row(str(name), cells, weak=name == curve.weakest, good=False))
    return Table(
        f"Largest radii without a known adversarial example ({unit})",
        ("class", "n", "clean, %", "mean radius", "median radius"),
        rows,
        f"Small: {formatting.level(curve.alpha)} intervals, for new images of the same class. Images without a known "
        f"adversarial example at {text(curve.highest)} count as {text(curve.highest)} in the mean.",
    )


def _ends(row: pd.Series[Any], kind: str, text: Callable[[float], str]) -> str:
    """The interval of a class's radius; none where all radii are equal: the normal interval would have no width."""
    low, high = row[f"{kind}_low"], row[f"{kind}_high"]
    return "" if kind == "mean" and low == high else f"{text(low)}\u2013{text(high)}"


def weakest_classes(curve: Curve) -> list[str]:
    """The classes that tie for the smallest mean radius."""
    means = curve.summary["mean"].iloc[:-1]
    return [str(name) for name in means.index[means == means.iloc[0]]]


def curve_headline(curve: Curve) -> Headline:
    """Name the class of the smallest mean radius, or all that tie for it."""
    factor = radius_unit(curve)[0]
    names, classes = weakest_classes(curve), len(curve.summary) - 1
    mean = f"{factor * float(curve.summary['mean'].iloc[0]):.3g}" + ("" if factor == 1 else f"/{factor:g}")
    if classes == 1:
        before = "The only class with images is "
    elif len(names) > 1:
        before = f"{formatting.counted(len(names), 'class', 'classes')} have the smallest mean radius: "
    else:
        before = "The class with the smallest mean radius is "
    return Headline(before, formatting.listed(names), f": {mean}")


def _context(curve: Curve) -> dict[str, Any]:
    factor, unit = radius_unit(curve)
    meta, summary = curve.meta, curve.summary
    weakest, overall = summary.iloc[0], summary.iloc[-1]
    where = " ".join(filter(None, (meta.data, meta.split)))
    headline, ties = curve_headline(curve), weakest_classes(curve)
    images = int(summary["n"].loc[ties].sum())
    ends = _ends(weakest, "mean", lambda radius: f"{factor * radius:.3g}")
    return {
        "title": f"{meta.model or curve.name}: {''.join(headline)}",
        "over": [part for part in (meta.model, where, unit, formatting.counted(len(curve.frame), "image")) if part],
        "population": (
            f"Intervals are {formatting.level(curve.alpha)} and speak of new images of the same classes, with the "
            "model fixed."
        ),
        "headline": headline,
        "lead": (
            f"Mean over {formatting.counted(images, 'image')} of the largest radius without a known adversarial "
            f"example (at most {factor * curve.highest:.3g}); over all images it is {factor * overall['mean']:.3g}."
        ),
        "interval": f"{formatting.level(curve.alpha)} interval {ends}." if ends and len(ties) == 1 else "",
        "figure": markup(radius_curves(curve)),
        "caption": (
            "An image's robust radius is below the smallest radius at which an adversarial example was found, so a "
            f"line never rises. The shade is the {formatting.level(curve.alpha)} interval of {curve.weakest} at each "
            "radius."
        ),
        "radii": radius_table(curve).first(MOST_ROWS),
        "searched": searched(curve),
        "settings": _settings(curve, unit),
    }


def searched(curve: Curve) -> str:
    """How closely the radii are known."""
    factor = radius_unit(curve)[0]
    low, high = (curve.frame[end].to_numpy() for end in ("low", "high"))
    found = np.isfinite(high) & (high > low)
    if not found.any():
        return "No image has a bracket: every image is misclassified without an attack, or survives the largest radius."
    share = max(_open_share(low[labels & found], high[labels & found], labels.sum()) for labels in _members(curve))
    return (
        "The attacks were repeated at the middle of each image's own bracket: the largest radius at which none "
        "succeeded, and the smallest at which one did. The brackets are at most "
        f"{factor * float((high - low)[found].max()):.3g} wide; inside it is not known whether an adversarial example "
        f"exists. At any one radius at most {formatting.percent(share)} of the images of a class have it inside their "
        "bracket. A radius is an upper bound: other attacks may succeed at a smaller one."
    )


def _members(curve: Curve) -> Iterator[BoolArray]:
    """(N,) which images are of a class, for each class with images."""
    labels = curve.frame["label"].to_numpy()
    for label in np.unique(labels):
        yield labels == label


def _open_share(low: FloatArray, high: FloatArray, images: int) -> float:
    """The largest share of ``images`` whose open brackets (low, high) hold one radius."""
    # Brackets are counted just above each lower end: the count can only rise there.
    overlaps = ((low[:, None] <= low) & (low < high[:, None])).sum(axis=0)
    return float(overlaps.max(initial=0)) / images


def _settings(curve: Curve, unit: str) -> list[tuple[str, str]]:
    meta, factor = curve.meta, radius_unit(curve)[0]
    frame = curve.frame
    passes = f"{frame['forwards'].sum():,} forward, {frame['backwards'].sum():,} backward, of one image each"
    items = [
        ("Data", " ".join(filter(None, (meta.data, meta.split)))),
        ("Data SHA-256", meta.data_hash),
        ("Model", meta.model),
        ("Model SHA-256", meta.model_hash),
        ("Range", f"0 to {factor * curve.highest:.4g} ({unit}), halved {formatting.counted(curve.rounds, 'time')}"),
        *attack_settings(meta),
        ("Seed", str(meta.seed)),
        ("Gradients", flat(meta.precision)),
        ("Images at once", str(meta.batch_size)),
        ("Passes", passes),
        *[(key.replace("_", " ").capitalize(), flat(value)) for key, value in curve.environment.items()],
    ]
    return [(name, text) for name, text in items if text]
