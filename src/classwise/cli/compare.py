"""``classwise compare``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from classwise.cli import console
from classwise.cli.exit_status import ExitStatus
from classwise.cli.help import ATTACK, OUTPUT
from classwise.cli.options import (
    Group,
    Json,
    grouped,
    named_sources,
    new_file,
    new_folder,
    out_option,
    printing_beside,
    refuse_json,
)
from classwise.cli.report import ExportOptions
from classwise.core.destinations import is_stdout
from classwise.core.errors import ClasswiseError

if TYPE_CHECKING:
    from classwise.auditing.compare import Comparison, Crossing, Pair
    from classwise.auditing.thresholds import ChangeThreshold

COLUMNS = (
    "method",
    "seeds",
    "n",
    "clean",
    "overall",
    "95 %",
    "worst",
    "95 %",
    "worst class",
    "worst 20 %",
    "CV",
    "MCD",
)
OPTIONAL = ("MCD", "CV", "worst 20 %", "seeds", "n", "clean")
"""The columns that a narrow terminal leaves out."""


@dataclass(frozen=True)
class ComparisonOptions:
    """What is compared."""

    panel: ClassVar[str] = OUTPUT
    attack: Annotated[
        str, typer.Option("--attack", metavar="NAME", help="Compare under this attack.", rich_help_panel=ATTACK)
    ] = "all"
    group: Group = None
    across: Annotated[
        str | None,
        typer.Option(
            "--across",
            metavar="threat|attacks",
            help="Show results at each value of this field, without tests.",
        ),
    ] = None
    allow_incomplete: Annotated[
        bool,
        typer.Option("--allow-incomplete", help="Show bounds for incomplete audits, without tests."),
    ] = False


@grouped
def compare(
    chosen: ComparisonOptions,
    exported: ExportOptions,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER...",
            help="Runs, audits, or folders of a method's seeds; NAME=FOLDER names a method. The others are compared "
            "with the first.",
        ),
    ],
    out: Annotated[
        Path | None,
        out_option("Also write a page; - is stdout.", metavar="FILE"),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 1 if a method's change against the first is such, as in 'worst(all) < -0.02', "
            "'overall(all).high < 0' (an end of its interval) or of one class 'truck(all) < -5%'. May be repeated.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare audits of the same images, with intervals.

    Audits are compared if they agree in images, threat, attacks, early stop, cascade and grouping; others are refused.
    Runs of one recipe that differ in the seed alone are one method, and so are all runs or audits in a folder of seeds.
    Differences, intervals and p-values are over all seeds, seed by seed where both methods have the same ones.

    \b
    Examples:
        classwise compare runs/at runs/cfa --out compare.html
        classwise compare at=runs/at cfa=runs/cfa ours=audits/ours --attack pgd
        classwise compare audits/at-2 audits/at-4 audits/at-8 \\
            --across threat --out curve.html
        classwise compare runs/main runs/new --fail-if 'worst(all) < -0.02' \\
            --export csv,tex --files tables
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.auditing.compare import compare as compare_audits

    page = new_file(out, "--out")
    refuse_json(json, page)
    thresholds = _thresholds(fail_if, exported, chosen.across)
    comparison: Comparison | Crossing = compare_audits(
        named_sources(sources),
        **vars(chosen),
    )
    for gap in getattr(comparison, "gaps", ()):
        console.echo(f"warning: {gap}", err=True)
    failed = _failed(comparison, thresholds)
    files = _export(comparison, exported, page)
    with printing_beside(page):
        if page is not None:
            from classwise.reporting import report

            report(comparison, page)
        if json:
            held = {"fail_if": {text: list(changes) for text, changes in failed.items()}} if thresholds else {}
            console.show_json(comparison_facts(comparison) | held)
        else:
            show_comparison(comparison)
            for line in ([] if page is None else [f"page: {page}"]) + [f"file: {path}" for path in files]:
                console.echo(line)
    for text, changes in failed.items():
        for name, change in changes.items():
            console.echo(f"failed: {text} ({name}: {change})", err=True)
    if any(failed.values()):
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)


def _thresholds(texts: list[str] | None, exported: ExportOptions, across: str | None) -> dict[str, ChangeThreshold]:
    """Parse the conditions, by their text, and check the options before any file is read.

    Raises:
        ClasswiseError: for a malformed condition, an unknown format, or ``--across`` with conditions or exports.
    """
    from classwise.auditing.thresholds import ChangeThreshold

    given = {"--fail-if": texts, "--export": exported.export}
    for option, value in given.items():
        if value and across is not None:
            raise ClasswiseError(f"{option} requires a comparison with the first method; omit --across {across}")
    return {text: ChangeThreshold.parse(text) for text in texts or ()}


def _failed(comparison: Comparison | Crossing, thresholds: dict[str, ChangeThreshold]) -> dict[str, dict[str, str]]:
    """The changes that meet each condition, in words, by the method's name.

    Raises:
        IncompleteError: if an audit is incomplete.
        ClasswiseError: for an unknown class or another attack, or if there is no second method.
    """
    from classwise.auditing.compare import Comparison
    from classwise.reporting.condition_text import change_text

    if not thresholds:
        return {}
    assert isinstance(comparison, Comparison)
    others = comparison.names[1:]
    if not others:
        raise ClasswiseError("--fail-if compares with the first method; give at least two methods")
    return {
        text: {name: change_text(comparison, name, threshold) for name in others if threshold.holds(comparison, name)}
        for text, threshold in thresholds.items()
    }


def _export(comparison: Comparison | Crossing, exported: ExportOptions, page: Path | None) -> list[Path]:
    """Write tables and figures, if requested.

    Raises:
        IncompleteError: if an audit is incomplete.
        ClasswiseError: for an unknown format, or if a file cannot be written.
    """
    from classwise.auditing.compare import Comparison

    if exported.export is None:
        return []
    from classwise.reporting import export_comparison

    assert isinstance(comparison, Comparison)
    beside = Path() if page is None or is_stdout(page) else page.parent
    place = new_folder(exported.files or beside / "files")
    return export_comparison(comparison, place, exported.formats, raw_csv=exported.raw_csv)


def show_comparison(comparison: Comparison | Crossing) -> None:
    """Print a comparison: a row per method, and each method against the first, with tests where available."""
    from classwise.auditing.compare import Crossing, narrowing_notes, population

    if isinstance(comparison, Crossing) or not comparison.complete:
        _show_untested(comparison)
        return
    rows = [method_row(name, row) for name, row in comparison.table.iterrows()]
    level = f"{100 * (1 - comparison.alpha):g} %"
    columns = [level if head == "95 %" else head for head in COLUMNS]
    if any(comparison.teachers.values()):
        columns.insert(1, "teacher")
        rows = [
            (name, teacher or "none", *cells)
            for (name, *cells), teacher in zip(rows, comparison.teachers.values(), strict=True)
        ]
    console.show(columns, rows, f"accuracy in percent {comparison.conditions}", optional=OPTIONAL)
    console.echo(_about(comparison))
    console.echo(population(comparison.seeds))
    for note in (*comparison.notes, *narrowing_notes(comparison.table)):
        console.echo(f"note: {note}")
    for pair in comparison.pairs:
        console.echo("")
        for line in _pair_lines(pair, comparison):
            console.echo(line)


def _about(comparison: Comparison) -> str:
    """The note on the columns, for methods of several seeds."""
    from classwise.reporting import formatting

    level = f"{100 * (1 - comparison.alpha):g} %"
    lowest = f"; beside worst, the {formatting.lowest_interval_name(comparison.alpha, comparison.group)}"
    several = any(number > 1 for number in comparison.seeds.values())
    over = "; of several seeds the means, and worst class is that of the lowest mean" if several else ""
    equal = any(len(names) > 1 for names in comparison.lowest_classes.values())
    first = "; of equally low classes the first" if equal else ""
    return f"{level}: interval of the preceding number{lowest}{over}{first}"


def _show_untested(comparison: Comparison | Crossing) -> None:
    from classwise.auditing.compare import Crossing
    from classwise.reporting.untested import bounds_reason, bounds_table, crossing_reason, crossing_table

    table = crossing_table(comparison) if isinstance(comparison, Crossing) else bounds_table(comparison)
    cells = [
        (row.name, *(f"{cell.text} [{cell.span}]" if cell.span else cell.text for cell in row.cells))
        for row in table.rows
    ]
    console.show(table.heads, cells, f"{table.caption}, {comparison.conditions}")
    console.echo("")
    console.echo(table.note)
    console.echo(crossing_reason(comparison) if isinstance(comparison, Crossing) else bounds_reason(comparison))
    for note in comparison.notes:
        console.echo(f"note: {note}")


def method_row(name: object, row: Any) -> tuple[object, ...]:
    """The cells of `COLUMNS` for a row of `Comparison.table`."""
    shown = console.percent
    return (
        name,
        int(row["seeds"]),
        int(row["n"]),
        shown(row["clean"]),
        shown(row["overall"]),
        console.interval(row["overall_low"], row["overall_high"]),
        shown(row["worst"]),
        console.interval(row["worst_low"], row["worst_high"]),
        row["worst_class"],
        shown(row["worst20"]),
        console.percent_squared(row["cv"]),
        shown(row["mcd"]),
    )


def _pair_lines(pair: Pair, comparison: Comparison) -> list[str]:
    """The difference of two methods, in percentage points."""
    from classwise.auditing.compare import narrowing

    alpha, kinds = comparison.alpha, "groups" if comparison.group else "classes"
    overall, minima = pair.overall, pair.minima
    differ = pair.classes[pair.classes["adjusted"] < alpha]
    shown = [f"{name} {_points(row['difference'])}" for name, row in differ.iterrows()]
    spans = [f"[{_points(ends.low)}, {_points(ends.high)}]" for ends in (overall, minima)]
    p_text = console.percent(pair.p_value) if math.isnan(pair.p_value) else f"{pair.p_value:.2g}"
    p_value = f"p = {p_text} ({pair.test}, not adjusted for other comparisons)"
    tested = int(pair.classes["adjusted"].notna().sum())
    advice = f"; {narrowing(pair.seeds, pair.narrower)}" if max(pair.seeds) > 1 else ""
    return [
        f"{pair.first} minus {pair.second}, in points, on the same images ({100 * (1 - alpha):g} %):",
        f"  overall      {_points(overall.value)} {spans[0]}, {p_value}",
        f"  worst class  {_points(minima.value)} {spans[1]}{advice}",
        f"  {kinds} that differ (p below {alpha:g}, adjusted for {tested} {kinds}): {', '.join(shown) or 'none'}",
        f"  {pair.population}",
    ]


def _points(share: float) -> str:
    return console.percent(share) if math.isnan(share) else f"{100 * share:+z.1f}"


def comparison_facts(comparison: Comparison | Crossing) -> dict[str, Any]:
    """A comparison as JSON; accuracies are fractions."""
    from classwise.auditing.compare import Crossing, population
    from classwise.reporting import formatting

    facts: dict[str, Any] = {"attack": comparison.attack, "notes": comparison.notes}
    facts["environments"] = {name: [each.environment for each in audits] for name, audits in comparison.audits.items()}
    if isinstance(comparison, Crossing):
        rows = comparison.table.reset_index().to_dict("records")
        return facts | {"across": comparison.field, "levels": list(comparison.levels), "rows": rows, "pairs": []}
    if not comparison.complete:
        bounds = comparison.bounds.to_dict("index")
        incomplete = {"complete": False, "gaps": comparison.gaps, "judged_by_all": comparison.judged_by_all}
        return facts | incomplete | {"bounds": bounds, "pairs": []}
    pairs = [
        {
            "first": pair.first,
            "second": pair.second,
            "seeds": pair.seeds,
            "paired_by_seed": pair.paired_by_seed,
            "test": pair.test,
            "population": pair.population,
            "overall": pair.overall._asdict(),
            "p_value": pair.p_value,
            "minima": pair.minima._asdict(),
            "narrower": pair.narrower,
            "classes": pair.classes.to_dict("index"),
        }
        for pair in comparison.pairs
    ]
    methods = comparison.table.to_dict("index")
    name = formatting.lowest_interval_name(comparison.alpha, comparison.group)
    about = {"complete": True, "population": population(comparison.seeds), "worst_interval": name}
    return facts | about | {"methods": methods, "pairs": pairs}
