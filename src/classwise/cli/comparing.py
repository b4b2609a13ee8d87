"""``classwise compare``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classwise.cli import console
from classwise.cli.options import Json, new_file
from classwise.errors import UserError

if TYPE_CHECKING:
    from classwise.auditing.compare import Comparison, Pair

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


def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER...",
            help="Runs or audits; NAME=FOLDER names a method. The first is compared with the others.",
        ),
    ],
    attack: Annotated[str, typer.Option("--attack", help="Compare under this attack, not under all together.")] = "all",
    group: Annotated[
        str | None, typer.Option("--group", metavar="COLUMN", help="Compare by this column's groups.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write a page too.")] = None,
    json: Json = False,
) -> None:
    """Put audits of the same images side by side, with intervals.

    Runs of one recipe that differ in the seed alone are taken together; a folder that train --seeds made stands for
    all its runs.

    \b
    Examples:
        classwise compare runs/at runs/cfa --out compare.html
        classwise compare at=runs/at cfa=runs/cfa ours=audits/ours --attack pgd
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.auditing.compare import compare as compare_audits

    page = new_file(out, "--out")
    comparison = compare_audits(_methods(sources), attack=attack, group=group)
    if page is not None:
        from classwise.report import compare_page

        compare_page(comparison, page)
    if json:
        console.show_json(comparison_facts(comparison))
        return
    show_comparison(comparison)
    if page is not None:
        typer.echo(f"page: {page}")


def _methods(sources: list[str]) -> list[str | Path] | dict[str, list[str | Path]]:
    """What to compare; by name if names are given.

    Raises:
        UserError: if some have a name and some have none.
    """
    named = ["=" in source and not Path(source).exists() for source in sources]
    if not any(named):
        return [folder for source in sources for folder in _seeds(source)]
    if not all(named):
        raise UserError(f"{sources[named.index(False)]!r} has no name; name all methods or none, as in at=runs/at")
    methods: dict[str, list[str | Path]] = {}
    for source in sources:
        name, _, folder = source.partition("=")
        methods.setdefault(name, []).extend(_seeds(folder))
    return methods


def _seeds(source: str) -> list[str | Path]:
    """The folder itself, or the runs in a folder that ``train --seeds`` made."""
    from classwise.training.folder import runs_in

    return [*runs_in(Path(source))] or [source]


def show_comparison(comparison: Comparison) -> None:
    """Print a comparison: a row per method, and every method against the first."""
    rows = [_row(name, row) for name, row in comparison.table.iterrows()]
    console.show(COLUMNS, rows, f"accuracy in percent under {comparison.attack}")
    for pair in comparison.pairs:
        typer.echo("")
        for line in _pair_lines(pair):
            typer.echo(line)


def _row(name: object, row: Any) -> tuple[object, ...]:
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


def _pair_lines(pair: Pair) -> list[str]:
    """One method against another in words, in points of accuracy."""
    overall, minima = pair.overall, pair.minima
    differ = pair.classes[pair.classes["adjusted"] < 0.05]
    told = [f"{name} {_points(row['difference'])}" for name, row in differ.iterrows()]
    spans = [console.interval(estimate.low, estimate.high) for estimate in (overall, minima)]
    return [
        f"{pair.first} minus {pair.second}, in points, on the same images (95 %):",
        f"  overall      {_points(overall.value)} {spans[0]}, p = {pair.p_value:.2g}",
        f"  worst class  {_points(minima.value)} {spans[1]}",
        f"  classes that differ (McNemar, Holm): {', '.join(told) or 'none beyond chance'}",
    ]


def _points(share: float) -> str:
    return f"{100 * share:+z.1f}"


def comparison_facts(comparison: Comparison) -> dict[str, Any]:
    """A comparison for programs; accuracies are fractions."""
    pairs = [
        dataclasses.asdict(dataclasses.replace(pair, classes=None))  # type: ignore[arg-type]  # a frame has its own form
        | {"overall": pair.overall._asdict(), "minima": pair.minima._asdict()}
        | {"classes": pair.classes.to_dict("index")}
        for pair in comparison.pairs
    ]
    return {"attack": comparison.attack, "methods": comparison.table.to_dict("index"), "pairs": pairs}
