"""``classwise papers``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from classwise.cli import console
from classwise.cli.help import DATA, MODEL, OUTPUT, TRAINING
from classwise.cli.options import Device, Estimate, Json, check_device, grouped, new_file, new_folder, out_option
from classwise.cli.paper_results import results_facts, show_forecast, show_result, show_table
from classwise.core.errors import ClasswiseError, unknown

if TYPE_CHECKING:
    from classwise.papers.catalogue import Item
    from classwise.papers.store import Store

TAKES = {
    "list": ("--store", "--json"),
    "show": ("--json",),
    "run": ("--scale", "--store", "--device", "--trainings", "--estimate", "--json", "--model", "--data"),
    "page": ("--store", "--out"),
}
"""The options of each action."""
SCALE = "smoke"
STORE = Path("runs/papers")


Trainings = Annotated[
    int,
    typer.Option(
        "--trainings",
        metavar="N",
        min=1,
        help="Independent trainings of each model, with other seeds.",
        rich_help_panel=TRAINING,
    ),
]


@dataclass(frozen=True)
class InputOptions:
    """Models and images of the user."""

    panel: ClassVar[str] = MODEL
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            rich_help_panel=MODEL,
            help="For benz20/P1.2: a run folder, a weights file that names its model, NAME=WEIGHTS such as "
            "resnet50=weights.pth, or package.module:callable. Repeat it for a second, adversarially trained model.",
        ),
    ] = None
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DIR",
            help="For benz20/P1.2: a folder with a subfolder of images per class.",
            rich_help_panel=DATA,
        ),
    ] = ""


@grouped
def papers(
    inputs: InputOptions,
    what: Annotated[str, typer.Argument(metavar="list|show|run|page", help="The action.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID...]",
            help="Items such as kdd21/T1; for list and page, papers.",
            show_default="all papers",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="smoke|reduced|full",
            help="Data, network and training: seconds, minutes to two hours, or a GPU.",
            rich_help_panel=TRAINING,
        ),
    ] = SCALE,
    store: Annotated[
        Path, typer.Option("--store", metavar="DIR", help="Folder of models and results.", rich_help_panel=OUTPUT)
    ] = STORE,
    out: Annotated[
        Path | None,
        out_option("The folder of the pages.", "pages, in the store"),
    ] = None,
    device: Device = "cpu",
    trainings: Trainings = 1,
    estimate: Estimate = False,
    json: Json = False,
) -> None:
    """List, show and rerun items of the papers.

    Items share trained models; repeat the command to resume an interrupted run.

    \b
    Examples:
        classwise papers list
        classwise papers show kdd21/T3
        classwise papers run cfa23/F1 kdd21/T3 --scale reduced
        classwise papers run cfa23/T1 --scale full --estimate
        classwise papers run benz20/P1.2 --scale full \\
            --model resnet50=weights.pth --data imagenet/val
        classwise papers page kdd21
    """  # noqa: D301  # \b keeps the lines of the example apart
    given = names or []
    if what not in TAKES:
        raise unknown("action of papers", what, TAKES)
    changed = {"--scale": scale != SCALE, "--store": store != STORE, "--out": out is not None}
    changed |= {"--device": device != "cpu", "--json": json, "--model": bool(inputs.model), "--data": bool(inputs.data)}
    changed |= {"--trainings": trainings != 1, "--estimate": estimate}
    _check_options(what, changed)
    if what == "list":
        _list(given, store, json)
    elif what == "show":
        _show(_named(given, what), json)
    elif what == "run" and estimate:
        show_forecast(_named(given, what), scale, check_device(device), trainings, json=json)
    elif what == "run":
        found = _named(given, what)
        _run(found, scale, store, json, device=check_device(device), trainings=trainings, chosen=inputs)
    else:
        _page(given, store, out)


def _check_options(what: str, changed: dict[str, bool]) -> None:
    """Refuse options that an action does not take.

    Raises:
        ClasswiseError: naming the first such option, and those that the action takes.
    """
    for option, asked in changed.items():
        if asked and option not in TAKES[what]:
            raise ClasswiseError(f"papers {what} takes no {option}; it takes {' and '.join(TAKES[what])}")


def _named(names: list[str], what: str) -> list[str]:
    if not names:
        raise ClasswiseError(f"papers {what}: name an item, as in classwise papers {what} cfa23/F1; list has them all")
    return names


def _list(papers: list[str], store: Path, json: bool) -> None:
    from classwise.papers import catalogue
    from classwise.papers.settings import deviation_counts
    from classwise.papers.store import Store

    if store != STORE and not store.exists():
        raise ClasswiseError(f"no store at {store}; papers run ID --store {store} makes one")
    kept = Store(store) if store.exists() else None
    chosen = [catalogue.paper(name).id for name in papers] or list(catalogue.papers())
    items = [item for item in catalogue.items().values() if item.paper in chosen]
    if json:
        console.show_json([_facts(item) | {"run_at": _run_at(item, kept)} for item in items])
        return
    rows = []
    for item in items:
        scales = _scales(item) if kept is None else _run_at(item, kept)
        counts = (item.id, item.kind, _short(item.title), item.status, ", ".join(scales), deviation_counts(item.id))
        rows.append((*counts, item.command or item.missing))
    heads = ["id", "kind", "what", "status", "scales" if kept is None else "run at", "deviations"]
    console.show([*heads, "command, or what is missing"], rows, optional=("deviations", "status", "kind"))


def _scales(item: Item) -> list[str]:
    from classwise.papers.catalogue import experiment

    return [str(scale) for scale in experiment(item.id).scales] if item.experiment else []


def _run_at(item: Item, store: Store | None) -> list[str]:
    """Scales at which a store has a result of an item."""
    return [scale for scale in _scales(item) if store is not None and store.result_file(item.id, scale).is_file()]


def _short(text: str, letters: int = 44) -> str:
    return text if len(text) <= letters else text[: letters - 1].rstrip() + "…"


def _facts(item: Item) -> dict[str, Any]:
    """An item as JSON."""
    from classwise.papers.settings import comparisons

    fields = ("id", "paper", "kind", "section", "title", "parameters", "finding", "covered_by", "same_as")
    facts = {name: getattr(item, name) for name in fields}
    status = {"status": item.status, "command": item.command, "missing": item.missing, "scales": _scales(item)}
    compared = comparisons(item.id) if item.experiment else {}
    settings = {scale: one.facts() for scale, one in compared.items()}
    return {**facts, **status, "settings": settings}


def _show(names: list[str], json: bool) -> None:
    from classwise.papers import catalogue
    from classwise.papers.tables import printed_table

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
        table = printed_table(item.id)
        if table is not None:
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
    table = settings_table(item.id)
    if table is not None:
        show_table(table)
    for scale, one in comparisons(item.id).items():
        if one.reason:
            typer.echo(f"settings: {one.reason}")
            return
        lines = deviation_lines(one)
        typer.echo(f"deviations from the paper at scale {scale}: {len(lines)}")
        for line in lines:
            typer.echo(f"  {line}")
        if one.ours:
            typer.echo(f"  not in the paper: {', '.join(one.ours)}")


def _explain(item: Item) -> None:
    from classwise.papers import catalogue

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


def _run(
    names: list[str],
    scale: str,
    store: Path,
    json: bool,
    *,
    device: str,
    trainings: int,
    chosen: InputOptions,
) -> None:
    from classwise.papers.result import Result
    from classwise.papers.runner import check_inputs, run, scale_of
    from classwise.papers.store import Store
    from classwise.papers.user_inputs import UserInputs

    inputs = UserInputs(models=chosen.model or [], data=chosen.data)
    for name in names:  # all of them before any work
        scale_of(name, scale)
        check_inputs(name, scale, inputs)
    if scale == "full" and device == "cpu":
        typer.echo("full scale on a CPU takes days per network; use --device cuda or --scale reduced", err=True)
    kept = Store(new_folder(store))
    for name in names:
        with console.resumable("repeat the command to continue"), console.progress() as listener:
            options: dict[str, Any] = {"device": device, "inputs": inputs, "trainings": trainings}
            run(name, scale, kept, progress=listener, **options)
    # read after the last run, since each run changes the correction for multiple testing
    results = [Result.load(kept.result_file(name, scale)) for name in names]
    if json:
        console.show_json(results_facts(results))
        return
    for result in results:
        show_result(result)


def _page(papers: list[str], store: Path, out: Path | None) -> None:
    from classwise.papers import catalogue
    from classwise.papers.page import paper_page
    from classwise.papers.store import Store

    chosen = [catalogue.paper(name).id for name in papers] or list(catalogue.papers())
    if not store.exists():
        raise ClasswiseError(f"no store at {store}; papers run ID --store {store} makes one")
    kept, folder = Store(store), out or store / "pages"
    targets = {name: new_file(folder / f"{name}.html", "--out") for name in chosen}
    for name, target in targets.items():
        assert target is not None
        typer.echo(f"page: {paper_page(name, kept, target)}")
