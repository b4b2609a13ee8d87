"""``classwise compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.builds import JUNIT, checked_junit
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
)
from classwise.cli.report import ExportOptions
from classwise.core.errors import ClasswiseError
from classwise.core.files.destinations import is_stdout

if TYPE_CHECKING:
    from classwise.auditing.compare.changes import ChangeThreshold
    from classwise.auditing.compare.compare import Crossing
    from classwise.auditing.compare.comparison import Comparison


@grouped
def compare(
    exported: ExportOptions,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER...",
            help="Runs, audits, or folders of a method's seeds; NAME=FOLDER names a method. The others are compared "
            "with the first.",
        ),
    ],
    attack: Annotated[
        str, typer.Option("--attack", metavar="NAME", help="Compare under this attack.", rich_help_panel=ATTACK)
    ] = "all",
    group: Group = None,
    across: Annotated[
        str | None,
        typer.Option(
            "--across",
            metavar="threat|attacks",
            help="Show results at each value of this field, without tests.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete", help="Show bounds for incomplete audits, without tests.", rich_help_panel=OUTPUT
        ),
    ] = False,
    out: Annotated[
        Path | None,
        out_option("Also write a page; - is stdout.", metavar="FILE"),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 1 if this condition is true of the difference between a method and the first, such as "
            "'any(all).high < 0' (some class lost accuracy beyond chance), 'overall(clean).high < 0', or of one class "
            "'truck(all) < -5%'. May be repeated.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="CONDITION",
            help="Exit with 1 if this condition is false, such as 'worst(all).low >= -0.02'; otherwise as --fail-if.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help=JUNIT, rich_help_panel=OUTPUT)] = None,
    json: Json = False,
) -> None:
    """Compare audits of the same images, with intervals.

    Audits are compared if they agree in images, threat, attacks, early stop, cascade, repeats, grid and grouping;
    others are rejected.
    Runs of one recipe that differ in the seed alone are one method, and so are all runs or audits in a folder of seeds.
    Differences, intervals and p-values are over all seeds.

    \b
    Examples:
        classwise compare runs/at runs/cfa --out compare.html
        classwise compare at=runs/at cfa=runs/cfa ours=audits/ours --attack pgd
        classwise compare audits/at-2 audits/at-4 audits/at-8 \\
            --across threat --out curve.html
        classwise compare runs/main runs/new --fail-if 'any(all).high < 0' \\
            --export csv,tex --files tables
        classwise compare runs/at runs/cfa --export tex \\
            --columns 'clean,overall,worst'
    """  # noqa: D301  # \b keeps the lines of the example apart
    page = new_file(out, "--out", json=json)
    checked_junit(junit, [*(fail_if or ()), *(require or ())], "worst(all).low >= -0.02")
    thresholds = _thresholds(fail_if, require, exported, across)
    comparison: Comparison | Crossing = cw.compare(
        named_sources(sources), attack=attack, group=group, across=across, allow_incomplete=allow_incomplete
    )
    console.echo(*(f"warning: {gap}" for gap in getattr(comparison, "gaps", ())), err=True)
    held = _held(comparison, thresholds)
    losses = {
        text: {name: thresholds[text].smallest_losses(comparison, name) for name in found}
        for text, found in held.items()
        if isinstance(comparison, cw.Comparison)
    }
    if junit is not None:
        from classwise.reporting.exports.builds import change_checks, write_junit

        assert isinstance(comparison, cw.Comparison)
        checks = change_checks(comparison, thresholds, losses)
        write_junit(junit, checks, f"comparison with {comparison.names[0]}", "\n".join(comparison.notes))
    files = []
    if exported.export is not None:
        assert isinstance(comparison, cw.Comparison)
        beside = Path() if page is None or is_stdout(page) else page.parent
        folder = new_folder(exported.files or beside / "files")
        files = cw.export(comparison, folder, exported.formats, **exported.settings)
    with console.status_decided(decided=bool(thresholds)), printing_beside(page):
        if page is not None:
            cw.report(comparison, page)
        if json:
            failed = {text: [name for name, holds in found.items() if holds] for text, found in held.items()}
            decided = {"fail_if": failed, "smallest_losses": losses} if thresholds else {}
            console.show_json(comparison_facts(comparison) | decided)
        else:
            console.show_result(comparison)
            console.echo(*([] if page is None else [f"page: {page}"]), *(f"file: {path}" for path in files))
            console.echo(*(f"passed: {line}" for line in _lines(comparison, thresholds, held, losses, holds=False)))
    console.echo(*(f"failed: {line}" for line in _lines(comparison, thresholds, held, losses, holds=True)), err=True)
    if any(any(found.values()) for found in held.values()):
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)


def _thresholds(
    fail_if: list[str] | None, require: list[str] | None, exported: ExportOptions, across: str | None
) -> dict[str, ChangeThreshold]:
    """Parse the conditions, by their text, and check the options before any file is read.

    Raises:
        ClasswiseError: for a malformed condition, an unknown format, or ``--across`` with conditions or exports.
    """
    from classwise.auditing.compare.changes import ChangeThreshold

    given = {"--fail-if": fail_if, "--require": require, "--export": exported.export}
    for option, value in given.items():
        if value and across is not None:
            raise ClasswiseError(
                f"{option} requires a comparison with the first method, and --across {across} has none; in Python, "
                f"cw.compare(..., across={across!r}).table is a data frame"
            )
    return ChangeThreshold.parse_all(fail_if, require)


def _held(comparison: Comparison | Crossing, thresholds: dict[str, ChangeThreshold]) -> dict[str, dict[str, bool]]:
    """Whether each condition is true, by the method's name.

    Raises:
        IncompleteError: if an audit is incomplete.
        ClasswiseError: for an unknown class or another attack, or if there is no second method.
    """
    if not thresholds:
        return {}
    assert isinstance(comparison, cw.Comparison)
    others = comparison.names[1:]
    if not others:
        raise ClasswiseError("a condition compares with the first method; give at least two methods")
    return {
        text: {name: threshold.holds(comparison, name) for name in others} for text, threshold in thresholds.items()
    }


def _lines(
    comparison: Comparison | Crossing,
    thresholds: dict[str, ChangeThreshold],
    held: dict[str, dict[str, bool]],
    losses: dict[str, dict[str, dict[str, float]]],
    *,
    holds: bool,
) -> list[str]:
    """The conditions that are true, or those that are not, with the method and its change."""
    from classwise.reporting.facts.condition_text import change_text, decision_text

    return [
        f"{decision_text(text, fails=holds)} "
        f"({name}: {change_text(comparison, name, thresholds[text], losses[text][name])})"
        for text, found in held.items()
        for name in found
        if found[name] is holds and isinstance(comparison, cw.Comparison)
    ]


def comparison_facts(comparison: Comparison | Crossing) -> dict[str, Any]:
    """A comparison as JSON; accuracies are fractions."""
    from classwise.auditing.compare.compare import Crossing
    from classwise.auditing.compare.comparison import population
    from classwise.reporting import formatting
    from classwise.reporting.facts.comparison_sentences import comparison_warnings

    facts: dict[str, Any] = {"attack": comparison.attack, "notes": comparison.notes}
    facts["warnings"] = comparison_warnings(comparison.audits, comparison.group)
    facts["environments"] = {
        name: [audit.environment for audit in audits] for name, audits in comparison.audits.items()
    }
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
    methods, selected = comparison.table.to_dict("index"), comparison.selected
    name = formatting.lowest_interval_name(comparison.alpha, comparison.group)
    about: dict[str, Any] = {"complete": True, "population": population(comparison.seeds), "worst_interval": name}
    about["selected"] = None if selected is None else selected.to_dict()
    return facts | about | {"methods": methods, "pairs": pairs}
