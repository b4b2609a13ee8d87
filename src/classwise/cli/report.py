"""``classwise report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.help import OUTPUT
from classwise.cli.options import grouped, new_file, new_folder, out_option, pairs, printing_beside
from classwise.core.errors import ClasswiseError, IncompleteError, quoted

NAMED = 5
"""Number of damaged files that an error message names."""


@dataclass(frozen=True)
class ExportOptions:
    """Tables and figures as files.

    Raises:
        ClasswiseError: for options without the one that they belong to.
    """

    panel: ClassVar[str] = OUTPUT
    export: Annotated[
        str | None,
        typer.Option("--export", metavar="csv,md,tex,png,pdf,svg", help="Also write tables and figures as files."),
    ] = None
    files: Annotated[
        Path | None,
        typer.Option("--files", metavar="DIR", help="Folder of these files.", show_default="files, beside the page"),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="HEAD,...",
            help="Columns of the Markdown and LaTeX tables, by their heads and in this order, such as overall,worst; "
            "the first column is always kept. Heads of attacks are also the panels of the figure of the classes.",
            show_default="all in Markdown; those that fit a text width in LaTeX",
        ),
    ] = None
    width: Annotated[
        float | None,
        typer.Option(
            "--width",
            metavar="PT",
            help="Width of the figures in points: 430 is a usual text width in LaTeX, 240 a column.",
            show_default="430",
        ),
    ] = None
    raw_csv: Annotated[
        bool,
        typer.Option("--raw-csv", help="Do not escape CSV cells that begin with = + - @ (by an apostrophe)."),
    ] = False

    def __post_init__(self) -> None:
        if self.files is not None and self.export is None:
            raise ClasswiseError("--files requires --export with the formats, such as --export csv,pdf")
        if self.columns is not None and not {*self.formats} - {"csv"}:
            raise ClasswiseError("--columns requires --export with a format other than csv")
        if self.width is not None and not {"png", "pdf", "svg"} & {*self.formats}:
            raise ClasswiseError("--width requires --export png, pdf or svg")
        if self.raw_csv and "csv" not in self.formats:
            raise ClasswiseError("--raw-csv requires --export csv")

    @property
    def formats(self) -> list[str]:
        """The formats by name."""
        return [] if self.export is None else [name.strip() for name in self.export.split(",")]

    @property
    def settings(self) -> dict[str, Any]:
        """The options of `classwise.export`."""
        columns = None if self.columns is None else [name.strip() for name in self.columns.split(",")]
        width = {} if self.width is None else {"width": self.width}
        return {"columns": columns, "raw_csv": self.raw_csv, **width}


@grouped
def report(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="An audit, a run with one audit, or a table of outcomes.")
    ],
    exported: ExportOptions,
    robustbench: Annotated[
        Path | None,
        typer.Option(
            "--robustbench",
            metavar="FILE",
            help="Also write RobustBench's model_info of an AutoAttack audit.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    robustbench_info: Annotated[
        list[str] | None,
        typer.Option(
            "--robustbench-info",
            metavar="KEY=VALUE",
            help="A field of the entry, such as venue='ICML 2020'. May be repeated.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        out_option("The page; - is stdout.", "page.html in the audit", metavar="FILE"),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only verify the checksums of the folder.", rich_help_panel=OUTPUT)
    ] = False,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete",
            help="Write bounds of an incomplete audit instead of exiting with status 3.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Write the page, tables and figures of an audit.

    \b
    Examples:
        classwise report runs/cfa
        classwise report runs/cfa --out cfa.html --export csv,pdf
        classwise report runs/cfa --check
        classwise report audits/aa --robustbench Rice2020Overfitting.json \\
            --robustbench-info 'venue=ICML 2020'
    """  # noqa: D301  # \b keeps the lines of the example apart
    facts = pairs(robustbench_info, "--robustbench-info")
    if facts and robustbench is None:
        raise ClasswiseError("--robustbench-info requires --robustbench FILE")
    if check:
        _check(source)
        return
    page, target = new_file(out, "--out"), new_file(robustbench, "--robustbench")
    audit = cw.Audit.load(source)
    if not audit.finished and not allow_incomplete:
        advice = "continue it with classwise audit --resume, or write bounds with --allow-incomplete"
        raise IncompleteError(f"{source}: {audit.outcomes.gap}; {advice}")
    beside = audit.path if audit.path is not None and audit.path.is_dir() else Path()
    page = page or new_file(beside / "page.html", "--out")
    assert page is not None
    place = None if exported.export is None else new_folder(exported.files or page.parent / "files")
    written, left = list[Path](), list[str]()
    if target is not None:  # before the page, so that a refusal leaves nothing
        from classwise.reporting.exports.robustbench import write_robustbench

        block = write_robustbench(audit, target, facts)["classwise"]
        left = [*block["notes"], *(f"{key} is for you to fill in" for key in block["to_fill_in"])]
        written.append(target)
    if place is not None:  # before the page, so that an unknown format leaves no page either
        written += cw.export(audit, place, exported.formats, **exported.settings)
    with printing_beside(page, target):
        console.echo(f"page: {cw.report(audit, page)}", *(f"file: {path}" for path in written))
        if not audit.finished:
            console.echo(f"warning (incomplete): {audit.outcomes.gap}; the page shows bounds", err=True)
        console.echo(*(f"{target}: {note}" for note in left))


def _check(folder: Path) -> None:
    """Verify the checksums of a folder.

    Raises:
        ClasswiseError: if a file differs or is missing; it names the first ones. If no file has a checksum.
    """
    from classwise.core.files.storage import check_files
    from classwise.reporting.evidence.build import MANIFEST

    valid, damaged, missing, unverified = check_files(folder)
    if not (valid or damaged or missing):
        hint = f"; verify evidence with: classwise evidence verify {quoted(folder)}"
        raise ClasswiseError(f"no file of {folder} has a checksum{hint if (folder / MANIFEST).is_file() else ''}")
    problems = []
    for paths, state in ((damaged, "damaged"), (missing, "missing")):
        if paths:
            names = ", ".join(str(path.relative_to(folder)) for path in paths[:NAMED])
            more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
            files = f"{len(paths)} of {len(valid) + len(damaged) + len(missing)} files with a checksum"
            problems.append(f"{files} are {state}: {names}{more}")
    if problems:
        raise ClasswiseError(f"{folder}: {'; '.join(problems)}")
    console.echo(f"{len(valid)} files match their checksums, {len(unverified)} have no checksum")
