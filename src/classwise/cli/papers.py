"""``classwise papers``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.help import COMPUTE, DATA, MODEL, OUTPUT, TRAINING, PanelCommand, PanelGroup
from classwise.cli.options import (
    Device,
    Estimate,
    Json,
    RatesName,
    check_device,
    measured_rates,
    new_folder,
    out_option,
)
from classwise.cli.paper_results import note_line, results_facts, show_forecast, show_result, show_table
from classwise.core.errors import ClasswiseError, quoted

if TYPE_CHECKING:
    from classwise.papers.catalogue import Item

STORE = Path("runs/papers")
SCALES = "smoke|small|reduced|medium|full"
Trainings = Annotated[
    int | None,
    typer.Option(
        "--trainings",
        metavar="N",
        min=1,
        help="Independent trainings of each model, with other seeds.",
        show_default="1; 3 at scale medium; 5 of cfa23/T1 to T3 and E2 at full",
        rich_help_panel=TRAINING,
    ),
]
Items = Annotated[list[str], typer.Argument(metavar="ID...", help="Items such as kdd21/T1.")]
Papers = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PAPER...]", help="Papers such as kdd21.", show_default="all papers"),
]
StoreFolder = Annotated[
    Path, typer.Option("--store", metavar="DIR", help="Folder of models and results.", rich_help_panel=OUTPUT)
]
papers = typer.Typer(
    name="papers",
    cls=PanelGroup,
    help="""List, show and rerun items of the papers.

    Items share trained models; repeat a run to resume it.
    """,
)


@papers.command("list", cls=PanelCommand)
def list_items(
    names: Papers = None,
    store: StoreFolder = STORE,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            metavar=SCALES,
            help="With --estimate: scale of the forecast.",
            show_default="full",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    trainings: Trainings = None,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="List the items that run at a scale in an order that shares trainings, with the cost that each adds.",
            rich_help_panel=COMPUTE,
        ),
    ] = False,
    rates: RatesName = None,
    json: Json = False,
) -> None:
    """List the items of the papers, or with --estimate their costs.

    Columns: scales at which an item can run, or if the store exists those
    with a result; at each scale, the number of settings that deviate from the
    paper; and the command that runs the item or shows the part of the
    library for it.

    \b
    Examples:
        classwise papers list
        classwise papers list cfa23 --json
        classwise papers list --scale full --estimate --rates h100
    """  # noqa: D301  # \b keeps the lines of the example apart
    measured = measured_rates(rates, estimate=estimate)
    for option, given in {"--trainings": trainings, "--scale": scale}.items():
        if given is not None and not estimate:
            raise ClasswiseError(f"{option} requires --estimate")
    if estimate:
        scale = scale or "full"
        planned = cw.papers.plan(names or (), scale)
        with console.progress() as listener:
            found = cw.papers.forecast(planned, scale, trainings, rates=measured, progress=listener)
        show_forecast(found, json=json, added=True)
        return
    kept = None if store == STORE and not store.exists() else store
    items = cw.papers.inventory(names or (), kept)
    if json:
        console.show_json(items)
        return
    rows = []
    for item in items:
        scales = ", ".join(item["scales"] if kept is None else item["run_at"])
        row = (item["id"], item["kind"], item["title"], item["status"], scales, _deviations(item))
        rows.append((*row, item["command"] or item["missing"]))
    deviations = "deviations from the paper"
    heads = ["item", "kind", "title", "status", "scales" if kept is None else "scales with a result", deviations]
    console.show([*heads, "command, or what is missing"], rows, optional=(deviations, "status", "kind"))


@papers.command(cls=PanelCommand)
def show(names: Items, json: Json = False) -> None:
    """Show the printed numbers, settings and notes of items.

    \b
    Example:
        classwise papers show kdd21/T3
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.papers.catalogue import find

    if json:
        shown = [cw.papers.item_facts(name) for name in names]
        console.show_json(shown if len(shown) > 1 else shown[0])
        return
    for place, item in enumerate([find(name) for name in names]):
        if place:
            typer.echo("")
        _explain(item)


@papers.command(cls=PanelCommand)
def run(
    names: Items,
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar=SCALES,
            help="Scale of data, network and training: smoke takes seconds and its models are no evidence; small up to "
            "an hour per training, reduced several hours; medium and full are for a GPU (30 epochs, or as published). "
            "Closed forms are exact at every scale.",
            rich_help_panel=TRAINING,
        ),
    ] = "smoke",
    trainings: Trainings = None,
    data_sets: Annotated[
        list[str] | None,
        typer.Option(
            "--data-sets",
            metavar="DATA",
            help="Limit items on several data sets to this one, such as mnist for kdd21/F1. Repeat it for others.",
            show_default="all available",
            rich_help_panel=DATA,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            rich_help_panel=MODEL,
            help="For benz20/P1.2: a run folder, a weights file that names its model, NAME=WEIGHTS such as "
            "resnet50=weights.pth, or package.module:callable. Repeat it for a second, adversarially trained model. "
            "For iclr21/F4, F7 and other items with a standard model of ImageNet, at scale full: that model.",
        ),
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DIR",
            help="For benz20/P1.2: a folder with a subfolder of images per class.",
            rich_help_panel=DATA,
        ),
    ] = "",
    store: StoreFolder = STORE,
    device: Device = "cpu",
    estimate: Estimate = False,
    rates: RatesName = None,
    json: Json = False,
) -> None:
    """Rerun items; repeat the command to resume a run.

    \b
    Examples:
        classwise papers run cfa23/F1 kdd21/T3 --scale small
        classwise papers run cfa23/T1 --scale full --estimate --rates h100
        classwise papers run kdd21/F1 --scale medium --data-sets mnist
        classwise papers run benz20/P1.2 --scale full \\
            --model resnet50=weights.pth --data imagenet/val
    """  # noqa: D301  # \b keeps the lines of the example apart
    check_device(device)
    measured = measured_rates(rates, estimate=estimate)
    if estimate:
        if model or data:
            raise ClasswiseError("--model and --data have no effect on --estimate; omit one or the other")
        with console.progress() as listener:
            found = cw.papers.forecast(
                names, scale, trainings, data_sets=data_sets or (), device=device, rates=measured, progress=listener
            )
        show_forecast(found, json=json)
        return
    with console.resumable("repeat the command to continue"), console.progress() as listener:
        results = cw.papers.run(
            names,
            scale,
            new_folder(store),
            device=device,
            progress=listener,
            models=model or (),
            data=data,
            trainings=trainings,
            data_sets=data_sets or (),
        )
    if json:
        console.show_json(results_facts(results))
        return
    for result in results:
        show_result(result)
    papers_run = " ".join(dict.fromkeys(result.item.partition("/")[0] for result in results))
    typer.echo(f"next: classwise papers page {papers_run}{'' if store == STORE else f' --store {quoted(store)}'}")


@papers.command(cls=PanelCommand)
def page(
    names: Papers = None,
    store: StoreFolder = STORE,
    out: Annotated[Path | None, out_option("The folder of the pages.", "pages, in the store")] = None,
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="csv,md,tex,svg",
            help="Also write the tables (csv, md, tex) and figures (svg) of the results as files.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(
            "--files",
            metavar="DIR",
            help="Folder of these files.",
            show_default="files, beside the pages",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Write pages of results beside the printed numbers.

    \b
    Examples:
        classwise papers page kdd21
        classwise papers page cfa23 --store docs/results/papers
        classwise papers page cfa23 --export tex,svg --files figures
    """  # noqa: D301  # \b keeps the lines of the example apart
    if files is not None and export is None:
        raise ClasswiseError("--files requires --export with the formats, such as --export tex,svg")
    folder, exported = out or store / "pages", list[Path]()
    if export is not None:  # before the pages, so that an unknown format leaves none
        formats = [name.strip() for name in export.split(",")]
        exported = cw.papers.export(names or (), store, files or folder / "files", formats)
    console.echo(*(f"page: {file}" for file in cw.papers.write_pages(names or (), store, folder)))
    console.echo(*(f"file: {file}" for file in exported))
    if store == STORE:
        console.echo("the repository's own results: --store docs/results/papers, in a clone")


def _deviations(item: Mapping[str, Any]) -> str:
    """Number of deviations at each scale, such as ``full 2, small 14``; empty for an item that does not run."""
    if any(compared["reason"] for compared in item["settings"].values()):
        return "no settings"
    return ", ".join(f"{scale} {len(lines)}" for scale, lines in item["deviations"].items())


def _explain(item: Item) -> None:
    """Print an item, its printed numbers, its settings and its notes."""
    from classwise.papers import catalogue
    from classwise.papers.tables import printed_table

    source = catalogue.paper(item.paper).bibliography
    lines = {
        "kind": item.kind,
        "paper": f"{source['title']}, {source['venue']}, section {item.section}",
        "parameters": item.parameters,
        "expected": item.finding,
        "status": item.status,
        "covered by": ", ".join(item.covered_by),
        "same as": ", ".join(item.same_as),
        "missing": item.missing,
        "command": item.command,
    }
    lines |= {f"scale {scale.name}": scale.about for scale in item.scales.values()}
    console.echo(f"{item.id}: {item.title}", *(f"  {name}: {text}" for name, text in lines.items() if text))
    if (table := printed_table(item.id)) is not None:
        typer.echo("")
        show_table(table)
    if item.scales:
        _show_settings(item)
    console.echo(*map(note_line, item.notes))


def _show_settings(item: Item) -> None:
    """Print the settings of the paper and of each scale, and their deviations."""
    from classwise.papers.settings import comparisons, deviation_lines, settings_table

    typer.echo("")
    if (table := settings_table(item.id)) is not None:
        show_table(table)
    for scale, comparison in comparisons(item.id).items():
        if comparison.reason:
            typer.echo(f"settings: {comparison.reason}")
            return
        lines = deviation_lines(comparison)
        console.echo(f"deviations from the paper at scale {scale}: {len(lines)}", *(f"  {line}" for line in lines))
        if comparison.ours:
            typer.echo(f"  not in the paper: {', '.join(comparison.ours)}")
