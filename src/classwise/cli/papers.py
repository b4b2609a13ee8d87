"""``classwise papers``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classwise.cli import console
from classwise.cli.help import DATA, MODEL, OUTPUT, TRAINING, PanelCommand, PanelGroup
from classwise.cli.options import Device, Estimate, Json, check_device, new_file, new_folder, out_option
from classwise.cli.paper_results import results_facts, show_forecast, show_result, show_table
from classwise.core.errors import ClasswiseError

if TYPE_CHECKING:
    from classwise.papers.catalogue import Item
    from classwise.papers.store import Store

STORE = Path("runs/papers")
LONGEST = 44
"""Letters of a title in the list."""

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
def list_items(names: Papers = None, store: StoreFolder = STORE, json: Json = False) -> None:
    """List the items, their scales and their deviations.

    \b
    Examples:
        classwise papers list
        classwise papers list cfa23 --json
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.papers import catalogue
    from classwise.papers.settings import deviation_counts
    from classwise.papers.store import Store

    kept = None if store == STORE and not store.exists() else Store(_existing(store))
    chosen = _chosen(names)
    items = [item for item in catalogue.items().values() if item.paper in chosen]
    if json:
        console.show_json([_facts(item) | {"run_at": _run_at(item, kept)} for item in items])
        return
    rows = []
    for item in items:
        scales = _scales(item) if kept is None else _run_at(item, kept)
        title = item.title if len(item.title) <= LONGEST else f"{item.title[: LONGEST - 1].rstrip()}…"
        counts = (item.id, item.kind, title, item.status, ", ".join(scales), deviation_counts(item.id))
        rows.append((*counts, item.command or item.missing))
    heads = ["id", "kind", "what", "status", "scales" if kept is None else "run at", "deviations"]
    console.show([*heads, "command, or what is missing"], rows, optional=("deviations", "status", "kind"))


@papers.command(cls=PanelCommand)
def show(names: Items, json: Json = False) -> None:
    """Show the printed numbers, settings and notes of items.

    \b
    Example:
        classwise papers show kdd21/T3
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.papers import catalogue

    items = [catalogue.find(name) for name in names]
    if json:
        shown = [
            _facts(item)
            | {"printed": catalogue.printed(item.id)}
            | {"notes": [dataclasses.asdict(note) for note in item.notes]}
            for item in items
        ]
        console.show_json(shown if len(shown) > 1 else shown[0])
        return
    for place, item in enumerate(items):
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
            metavar="smoke|reduced|full",
            help="Data, network and training: seconds, minutes to two hours, or a GPU.",
            rich_help_panel=TRAINING,
        ),
    ] = "smoke",
    trainings: Annotated[
        int,
        typer.Option(
            "--trainings",
            metavar="N",
            min=1,
            help="Independent trainings of each model, with other seeds.",
            rich_help_panel=TRAINING,
        ),
    ] = 1,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            rich_help_panel=MODEL,
            help="For benz20/P1.2: a run folder, a weights file that names its model, NAME=WEIGHTS such as "
            "resnet50=weights.pth, or package.module:callable. Repeat it for a second, adversarially trained model.",
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
    json: Json = False,
) -> None:
    """Rerun items; repeat the command to resume a run.

    \b
    Examples:
        classwise papers run cfa23/F1 kdd21/T3 --scale reduced
        classwise papers run cfa23/T1 --scale full --estimate
        classwise papers run benz20/P1.2 --scale full \\
            --model resnet50=weights.pth --data imagenet/val
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.papers.result import Result
    from classwise.papers.runner import check_inputs, run, scale_of
    from classwise.papers.store import Store
    from classwise.papers.user_inputs import UserInputs

    check_device(device)
    if estimate:
        show_forecast(names, scale, device, trainings, json=json)
        return
    inputs = UserInputs(models=model or [], data=data)
    for name in names:  # all of them before any work
        scale_of(name, scale)
        check_inputs(name, scale, inputs)
    if scale == "full" and device == "cpu":
        typer.echo("full scale on a CPU takes days per network; use --device cuda or --scale reduced", err=True)
    kept = Store(new_folder(store))
    for name in names:
        with console.resumable("repeat the command to continue"), console.progress() as listener:
            run(name, scale, kept, progress=listener, device=device, inputs=inputs, trainings=trainings)
    # read after the last run, since each run changes the correction for multiple testing
    results = [Result.load(kept.result_file(name, scale)) for name in names]
    if json:
        console.show_json(results_facts(results))
        return
    for result in results:
        show_result(result)


@papers.command(cls=PanelCommand)
def page(
    names: Papers = None,
    store: StoreFolder = STORE,
    out: Annotated[Path | None, out_option("The folder of the pages.", "pages, in the store")] = None,
) -> None:
    """Write pages of results beside the printed numbers.

    \b
    Example:
        classwise papers page kdd21
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.papers.page import paper_page
    from classwise.papers.store import Store

    chosen, kept, folder = _chosen(names), Store(_existing(store)), out or store / "pages"
    for target in [new_file(folder / f"{name}.html", "--out") for name in chosen]:  # all of them before any work
        assert target is not None
        typer.echo(f"page: {paper_page(target.stem, kept, target)}")


def _chosen(names: list[str] | None) -> list[str]:
    from classwise.papers import catalogue

    return [catalogue.paper(name).id for name in names or ()] or list(catalogue.papers())


def _existing(store: Path) -> Path:
    if not store.exists():
        raise ClasswiseError(f"no store at {store}; papers run ID --store {store} makes one")
    return store


def _scales(item: Item) -> list[str]:
    from classwise.papers.catalogue import experiment

    return [str(scale) for scale in experiment(item.id).scales] if item.experiment else []


def _run_at(item: Item, store: Store | None) -> list[str]:
    """Scales at which a store has a result of an item."""
    return [scale for scale in _scales(item) if store is not None and store.result_file(item.id, scale).is_file()]


def _facts(item: Item) -> dict[str, Any]:
    """An item as JSON."""
    from classwise.papers.settings import comparisons

    fields = ("id", "paper", "kind", "section", "title", "parameters", "finding", "covered_by", "same_as")
    compared = comparisons(item.id) if item.experiment else {}
    return {
        **{name: getattr(item, name) for name in (*fields, "status", "command", "missing")},
        "scales": _scales(item),
        "settings": {scale: comparison.facts() for scale, comparison in compared.items()},
    }


def _explain(item: Item) -> None:
    """Print an item, its printed numbers, its settings and its notes."""
    from classwise.papers import catalogue
    from classwise.papers.tables import printed_table

    typer.echo(f"{item.id}: {item.title}")
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
    if item.experiment:
        for scale in catalogue.experiment(item.id).scales.values():
            lines[f"scale {scale.name}"] = scale.about
    for name, text in lines.items():
        if text:
            typer.echo(f"  {name}: {text}")
    if (table := printed_table(item.id)) is not None:
        typer.echo("")
        show_table(table)
    if item.status == "runnable":
        _show_settings(item)
    for note in item.notes:
        typer.echo(f"note {note.id} ({note.kind}): {note.text}")


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
        typer.echo(f"deviations from the paper at scale {scale}: {len(lines)}")
        for line in lines:
            typer.echo(f"  {line}")
        if comparison.ours:
            typer.echo(f"  not in the paper: {', '.join(comparison.ours)}")
