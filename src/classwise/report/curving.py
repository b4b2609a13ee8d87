"""The page and the files of a robustness curve."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd

from classwise.auditing.radii import OVERALL, Curve
from classwise.report import wording
from classwise.report.exporting import write_files
from classwise.report.figures.radii import radius_curves, radius_unit
from classwise.report.provenance import attack_settings, flat
from classwise.report.rendering import markup, render
from classwise.report.tables import Cell, Row, Table
from classwise.storage import write_text

MOST_ROWS = 200
"""Rows of a table on a page."""


def curve_page(curve: Curve, path: str | os.PathLike[str]) -> Path:
    """Write a curve as one self-contained page.

    Raises:
        UserError: if the file cannot be written.
    """
    write_text(path, render("curve.html", _context(curve)))
    return Path(path)


def export_curve(
    curve: Curve, folder: str | os.PathLike[str], formats: Collection[str] = ("csv", "md", "png", "svg")
) -> list[Path]:
    """Write the tables (``curve``, ``radii``) and the figure (``curve``) into a folder; old files are replaced.

    ``curve.csv`` holds the accuracy of each class at each radius with its interval, ``radii.csv`` a row per class with
    its mean and median radius.

    Raises:
        UserError: for an unknown format, or if a file cannot be written.
    """
    frames = {"curve": curve.table(), "radii": curve.summary.reset_index()}
    return write_files(folder, formats, frames, {"radii": radius_table(curve)}, {"curve": radius_curves(curve)})


def radius_table(curve: Curve) -> Table:
    """A row per class, the weakest first: clean accuracy, mean and median radius, each radius with its interval."""
    factor, unit = radius_unit(curve)
    summary: pd.DataFrame = curve.summary

    def text(radius: float) -> str:
        return f"{factor * radius:.3g}" if radius <= curve.highest else f"over {factor * curve.highest:.3g}"

    rows = []
    for name, row in summary.iterrows():
        cells = [Cell(wording.count(row["n"])), Cell(wording.bare_percent(row["clean"]))]
        cells += [
            Cell(text(row[kind]), f"{text(row[f'{kind}_low'])}\u2013{text(row[f'{kind}_high'])}")
            for kind in ("mean", "median")
        ]
        rows.append(Row(str(name), cells, weak=name == curve.weakest, good=False))
    return Table(
        f"Radii up to which images stand ({unit})",
        ("class", "n", "clean, %", "mean radius", "median radius"),
        rows,
        f"Small: {wording.level(curve.alpha)} intervals, for new images of the same class. In the mean, images that "
        f"stand at {text(curve.highest)} count as that.",
    )


def _context(curve: Curve) -> dict[str, Any]:
    factor, unit = radius_unit(curve)
    meta, summary = curve.meta, curve.summary
    weakest, overall = summary.loc[curve.weakest], summary.loc[OVERALL]
    where = " ".join(filter(None, (meta.data, meta.split)))
    images = int(summary["n"].to_dict()[curve.weakest])
    mean = f"{factor * weakest['mean']:.3g}" + ("" if factor == 1 else f"/{factor:g}")
    span = f"{factor * weakest['mean_low']:.3g}\u2013{factor * weakest['mean_high']:.3g}"
    table = curve.table()
    return {
        "title": f"{curve.weakest} falls first: {meta.model or curve.name}",
        "over": [part for part in (meta.model, where, unit, f"{wording.count(len(curve.frame))} images") if part],
        "population": (
            f"Intervals are {wording.level(curve.alpha)} and speak of new images of the same classes, with the model "
            "fixed."
        ),
        "weakest": curve.weakest,
        "mean": mean,
        "lead": (
            f"Mean radius up to which its images stand, of {wording.count(images)} images; over all images it is "
            f"{factor * overall['mean']:.3g}."
        ),
        "level": wording.level(curve.alpha),
        "span": span,
        "figure": markup(radius_curves(curve)),
        "caption": (
            "An image counts as broken from the smallest radius on at which the attacks were seen to break it, so a "
            f"line never rises. The shade is the {wording.level(curve.alpha)} interval of the weakest class at each "
            "radius."
        ),
        "radii": radius_table(curve).first(MOST_ROWS),
        "searched": (
            "Every image was attacked at the middle of its own bracket until that was at most "
            f"{factor * curve.width:.3g} wide; between the two ends it may or may not stand. At any one radius at most "
            f"{_gap(table)} of the images of a class lie in such a bracket. A radius is an upper bound: other attacks "
            "may break an image sooner."
        ),
        "settings": _settings(curve, unit),
    }


def _gap(table: pd.DataFrame) -> str:
    """The largest share of a class whose bracket holds the same radius."""
    return wording.percent(float((table["accuracy"] - table["tested"]).max()))


def _settings(curve: Curve, unit: str) -> list[tuple[str, str]]:
    meta, factor = curve.meta, radius_unit(curve)[0]
    frame = curve.frame
    passes = f"{frame['forwards'].sum():,} forward, {frame['backwards'].sum():,} backward, of one image each"
    items = [
        ("Data", " ".join(filter(None, (meta.data, meta.split)))),
        ("Data SHA-256", meta.data_hash),
        ("Model", meta.model),
        ("Model SHA-256", meta.model_hash),
        ("Range", f"0 to {factor * curve.highest:.4g} ({unit}), halved {curve.rounds} times"),
        *attack_settings(meta),
        ("Seed", str(meta.seed)),
        ("Gradients", flat(meta.precision)),
        ("Images at once", str(meta.batch)),
        ("Passes", passes),
        *[(key.replace("_", " ").capitalize(), flat(value)) for key, value in curve.environment.items()],
    ]
    return [(name, text) for name, text in items if text]
