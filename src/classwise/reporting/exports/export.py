"""Export of tables as CSV, Markdown and LaTeX, and of figures as PNG, PDF and SVG, one file each."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.curve.result import Curve
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.files.csv_files import write_csv
from classwise.core.files.storage import write_text
from classwise.core.settings.arguments import checked
from classwise.core.settings.names import fresh_name
from classwise.reporting.characters import figure_lacks, latex_lacks, notice
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.facts.audit_tables import attack_frame, attack_table, class_frame, class_table, image_frame
from classwise.reporting.facts.comparison_tables import (
    accuracy_points,
    class_dots,
    difference_dots,
    measure_dots,
    measure_table,
    pair_table,
)
from classwise.reporting.facts.comparison_tables import class_table as comparison_class_table
from classwise.reporting.facts.incomplete import report_of
from classwise.reporting.facts.provenance import conditions
from classwise.reporting.facts.repeats import repeats_table
from classwise.reporting.facts.training_curves import curves_of_audit
from classwise.reporting.figures.heatmap import Confusion
from classwise.reporting.figures.radii import radius_curves
from classwise.reporting.pages.curve import radius_table
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Table, plain_head
from classwise.training.folder import Run

logger = logging.getLogger(__name__)

TABLES = ("csv", "md", "tex")
FIGURES = ("png", "pdf", "svg")
FORMATS = (*TABLES, *FIGURES)
"""All export formats."""
TEXT_WIDTH = 430.0
"""Default width of exported figures in points: the text width of usual LaTeX classes on A4; a column has about 240."""
WIDTHS = (120.0, 1200.0)
"""Smallest and largest width of exported figures, in points."""
POINT = 96 / 72
"""Pixels in a point."""
AUDIT_COLUMNS = {"classes": ("n", CLEAN, ALL), "attacks": ("overall", "worst class", "worst")}
"""Columns of the LaTeX tables of an audit by default: those that fit a text width with their intervals."""
COMPARISON_COLUMNS = {"methods": (CLEAN, "overall", "worst class", "worst")}
"""Columns of the LaTeX tables of a comparison by default."""


@checked
def export(
    result: Audit | Comparison | Curve,
    folder: str | os.PathLike[str],
    formats: Collection[str] = ("csv", "md", "png", "pdf"),
    *,
    run: Run | None = None,
    columns: Collection[str] | None = None,
    width: float = TEXT_WIDTH,
    raw_csv: bool = False,
) -> list[Path]:
    """Write the tables and figures of a result into a folder; existing files of the same names are replaced.

    CSV files contain fractions with the limits of their intervals, Markdown and LaTeX (booktabs) files percentages.
    LaTeX tables have labels such as ``tab:classes`` and by default the columns that fit a text width. Figures are drawn
    for print, with texts of 7.5 to 9 points at ``width``.

    - Audit. As CSV only ``images``, the name, the class and the groups of each image, whether it is correct under each
      attack, and its predicted class, ``confusion-<attack>`` and ``epochs``. Tables: ``classes``, ``attacks``;
      ``probabilities`` with repeats.
      Figures: ``strip``, ``classes``, ``confusion-<attack>`` and ``errors-<attack>``, of ``all`` and the strongest
      attack, and the training curves (``epochs-<panel>``). The figure ``classes`` has a panel for clean images and for
      all attacks together, or for each of ``columns`` that names one. Of an incomplete audit, the tables ``classes``
      and ``attacks`` and the figure ``classes`` contain bounds, and nothing else is written, but for the table and the
      figure ``estimates`` of a sample.
    - Comparison. Tables and figures: ``methods``, ``classes``, and ``difference-<method>`` relative to the first
      method. Of three or more methods also the figure ``accuracies``: worst-class against overall accuracy.
    - Curve. ``curve.csv`` contains the accuracy of each class at each radius with its interval, the table ``radii`` the
      mean and median radius of each class. The figure is ``curve``.

    Args:
        result: an audit, a comparison or a robustness curve.
        folder: output folder; created if it does not exist.
        formats: any of ``csv``, ``md``, ``tex``, ``png``, ``pdf``, ``svg``.
        run: the training run of an audited model; by default the run whose folder contains the audit.
        columns: heads of columns of the Markdown and LaTeX tables, such as ``["overall", "worst"]``, in this order
            after the first column, which every table keeps. A table that has none of them keeps its columns. None: all
            in Markdown; in LaTeX the number of images, ``clean`` and ``all`` of the classes of an audit, and the
            overall and worst-class accuracies of attacks and methods.
        width: width of the figures in points, from 120 to 1200; wider ones are scaled down to it.
        raw_csv: write text in CSV files unchanged. By default an apostrophe is put before text that a spreadsheet would
            evaluate as a formula (`classwise.core.files.csv_files.spreadsheet_text`).

    Returns:
        The written files, in the order of writing.

    Raises:
        ClasswiseError: for an unknown format, a column that no table has, a width out of range, if a file cannot be
            written, or if ``run`` is passed with a result that is not an audit.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> outcomes = cw.Outcomes.from_predictions([0, 1], clean=[0, 1], attacks={"pgd": [0, 0]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [file.name for file in cw.export(cw.Audit(outcomes), folder, ["md"])]
        ['classes.md', 'attacks.md']
    """
    if run is not None and not isinstance(result, Audit):
        raise ClasswiseError(f"run: accepted only with a result of type Audit, got {type(result).__name__}")
    if not WIDTHS[0] <= width <= WIDTHS[1]:
        raise ClasswiseError(f"width: must be from {WIDTHS[0]:g} to {WIDTHS[1]:g} points, got {width:g}")
    pixels, latex = POINT * width, dict[str, Sequence[str]]()
    if isinstance(result, Comparison):
        contents, latex = _of_comparison(result, pixels), {**COMPARISON_COLUMNS}
    elif isinstance(result, Curve):
        frames = {"curve": result.table(), "radii": result.summary.reset_index()}
        contents = _Contents(frames, {"radii": radius_table(result)}, {"curve": radius_curves(result, width=pixels)})
    elif result.complete:
        contents, latex = _of_audit(result, run, pixels, columns), {**AUDIT_COLUMNS}
    else:
        contents, latex = _Contents(*report_of(result).contents(pixels)), {**AUDIT_COLUMNS}
    tables = _with_columns(contents.tables, columns)
    if not isinstance(result, Curve):
        one = result if isinstance(result, Audit) else next(iter(result.audits.values()))[0]
        about = conditions(one, ALL if isinstance(result, Audit) else result.attack)
        tables = {name: replace(table, note=f"{table.note} {about}.".strip()) for name, table in tables.items()}
    return write_files(
        folder,
        formats,
        *contents._replace(tables=tables),
        latex_columns=latex if columns is None else {},
        width=pixels,
        raw_csv=raw_csv,
    )


class _Contents(NamedTuple):
    """Data frames, formatted tables and figures, by file stem."""

    frames: Mapping[str, pd.DataFrame]
    tables: Mapping[str, Table]
    drawings: Mapping[str, Drawing]


def _with_columns(tables: Mapping[str, Table], columns: Collection[str] | None) -> Mapping[str, Table]:
    """The tables with the chosen columns.

    Raises:
        ClasswiseError: for a column that no table has.
    """
    if columns is None:
        return tables
    heads = {head for table in tables.values() for head in table.heads}
    for name in columns:
        if plain_head(name) not in map(plain_head, heads):
            raise unknown("column", name, heads)
    return {name: table.select([*columns]) for name, table in tables.items()}


def _panels(summary: AuditSummary, columns: Collection[str] | None) -> list[str]:
    """The panels of the figure ``classes``: those whose heads are chosen, else clean images and all attacks."""
    chosen = {plain_head(name) for name in columns or ()}
    panels = [name for name in summary.counts if plain_head(summary.heading(name)) in chosen]
    return panels or [name for name in (CLEAN, ALL) if name in summary.counts]


def _of_audit(audit: Audit, run: Run | None, width: float, columns: Collection[str] | None) -> _Contents:
    summary, curves = AuditSummary.of(audit), curves_of_audit(audit, run)
    frames = {"classes": class_frame(summary), "attacks": attack_frame(summary), "images": image_frame(audit)}
    panels = _panels(summary, columns)
    drawings = {"strip": summary.strip(width=width), "classes": summary.bars(panels, width=width)}
    stems = _stems(summary.confusions)
    for name, confusion in summary.confusions.items():
        stem = stems[name]
        frames[f"confusion-{stem}"] = _confusion_frame(confusion)
        if name in {ALL, summary.strongest}:
            drawings |= {f"confusion-{stem}": summary.matrix(name, "rates", width=width)}
            drawings |= {f"errors-{stem}": summary.matrix(name, "errors", width=width)}
    if curves is not None:
        frames["epochs"] = curves.epochs
        drawings |= {f"epochs-{file_name(name)}": drawing for name, drawing in curves.drawings.items()}
    tables = {"classes": class_table(summary), "attacks": attack_table(summary)}
    if audit.outcomes.meta.repeats > 1:
        frames["probabilities"], tables["probabilities"] = audit.probabilities().reset_index(), repeats_table(audit)
    return _Contents(frames, tables, drawings)


def _of_comparison(comparison: Comparison, width: float) -> _Contents:
    classes = comparison.classes.copy()
    classes.columns = pd.Index(["_".join(filter(None, names)) for names in classes.columns])
    frames = {"methods": comparison.table.reset_index(), "classes": classes.reset_index()}
    tables = {"methods": measure_table(comparison), "classes": comparison_class_table(comparison)}
    drawings = {"methods": measure_dots(comparison, width=width), "classes": class_dots(comparison, width=width)}
    if (points := accuracy_points(comparison, width=width)) is not None:
        drawings["accuracies"] = points
    stems = _stems(pair.first for pair in comparison.pairs)
    for pair in comparison.pairs:
        stem = f"difference-{stems[pair.first]}"
        frames[stem] = pair.classes.reset_index()
        tables[stem] = pair_table(comparison, pair)
        drawings[stem] = difference_dots(comparison, pair, width=width)
    return _Contents(frames, tables, drawings)


def write_files(
    folder: str | os.PathLike[str],
    formats: Collection[str],
    frames: Mapping[str, pd.DataFrame],
    tables: Mapping[str, Table],
    drawings: Mapping[str, Drawing],
    *,
    latex_columns: Mapping[str, Sequence[str]] | None = None,
    width: float = math.inf,
    raw_csv: bool = False,
) -> list[Path]:
    """Write each frame as CSV, each table as Markdown or LaTeX, and each drawing as PNG, PDF or SVG, if requested.

    One warning is logged if a format does not show a character of a name; it names what to do.

    Args:
        folder: output folder; created if it does not exist.
        formats: the requested formats.
        frames: data frames by file stem.
        tables: formatted tables by file stem.
        drawings: figures by file stem.
        latex_columns: heads of the columns of LaTeX tables by file stem; other tables have all columns.
        width: wider figures are scaled down to this width in pixels.
        raw_csv: as in `export`.

    Returns:
        The written files, in the order of writing.

    Raises:
        ClasswiseError: for an unknown format, or if a file cannot be written.
    """
    for kind in formats:
        if kind not in FORMATS:
            raise unknown("format", kind, FORMATS)
    target, written = Path(folder), list[Path]()
    in_latex, in_figures = set[str](), set[str]()
    if "csv" in formats:
        written += [write_csv(target / f"{name}.csv", frame, raw=raw_csv) for name, frame in frames.items()]
    if "md" in formats:
        written += [_text(target / f"{name}.md", table.markdown()) for name, table in tables.items()]
    if "tex" in formats:
        chosen = latex_columns or {}
        sources = {name: table.select(chosen.get(name, ())).latex(name) for name, table in tables.items()}
        written += [_text(target / f"{name}.tex", source) for name, source in sources.items()]
        in_latex = latex_lacks("".join(sources.values()))
    for kind in (kind for kind in FIGURES if kind in formats):
        for name, drawing in drawings.items():
            drawing.save(target / f"{name}.{kind}", width)
            written.append(target / f"{name}.{kind}")
    if drawings and {"png", "pdf"} & {*formats}:
        in_figures = figure_lacks(text for drawing in drawings.values() for text in drawing.texts)
    if line := notice(in_latex, in_figures):
        logger.warning("%s: %s", target, line)
    return written


def _confusion_frame(confusion: Confusion) -> pd.DataFrame:
    """A confusion matrix as a frame: a row per class, or for a sparse matrix a row per non-zero cell."""
    names = np.asarray(confusion.names, dtype=object)
    if not sparse.issparse(confusion.matrix):
        return pd.DataFrame(confusion.matrix, pd.Index(names, name="truth"), list(confusion.names)).reset_index()
    cells = sparse.coo_array(confusion.matrix)
    return pd.DataFrame({"truth": names[cells.row], "prediction": names[cells.col], "count": cells.data})


def _stems(names: Iterable[str]) -> dict[str, str]:
    """File names of names, each another one."""
    stems: dict[str, str] = {}
    for name in names:
        stems[name] = fresh_name(file_name(name), stems.values())
    return stems


def file_name(name: str) -> str:
    """Replace characters that are unsafe in file names: ``tpgd[5]`` becomes ``tpgd-5``."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "unnamed"


def _text(path: Path, text: str) -> Path:
    write_text(path, text)
    return path
