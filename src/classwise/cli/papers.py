"""``classwise papers``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classwise.cli import console
from classwise.cli.help import DATA, MODEL, OUTPUT, TRAINING
from classwise.cli.options import Device, Json, check_device, new_file, new_folder, out_option
from classwise.core.errors import ClasswiseError, unknown

if TYPE_CHECKING:
    from classwise.papers.catalogue import Item
    from classwise.papers.claims import Verdict
    from classwise.papers.evidence import Evidence
    from classwise.papers.measurements import Measurement
    from classwise.papers.result import Result
    from classwise.papers.store import Store
    from classwise.reporting.tables import Table

TAKES = {
    "list": ("--store", "--json"),
    "show": ("--json",),
    "run": ("--scale", "--store", "--device", "--trainings", "--json", "--model", "--data"),
    "page": ("--store", "--out"),
}
"""The options of each action."""
SCALE = "smoke"
STORE = Path("runs/papers")


def papers(
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
    json: Json = False,
) -> None:
    """List, show and rerun items of the four papers.

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
    changed |= {"--device": device != "cpu", "--json": json, "--model": bool(model), "--data": bool(data)}
    changed |= {"--trainings": trainings != 1}
    for option, asked in changed.items():
        if asked and option not in TAKES[what]:
            raise ClasswiseError(f"papers {what} takes no {option}; it takes {' and '.join(TAKES[what])}")
    if what == "list":
        _list(given, store, json)
    elif what == "show":
        _show(_named(given, what), json)
    elif what == "run":
        run_on = check_device(device)
        _run(_named(given, what), scale, store, json, device=run_on, trainings=trainings, models=model or [], data=data)
    else:
        _page(given, store, out)


def _named(names: list[str], what: str) -> list[str]:
    if not names:
        raise ClasswiseError(f"papers {what}: name an item, as in classwise papers {what} cfa23/F1; list has them all")
    return names


def _list(papers: list[str], store: Path, json: bool) -> None:
    from classwise.papers import catalogue
    from classwise.papers.settings_tables import deviation_counts
    from classwise.papers.store import Store

    if store != STORE and not store.exists():
        raise ClasswiseError(f"no store at {store}; papers run ID --store {store} makes one")
    kept = Store(store) if store.exists() else None
    chosen = [catalogue.paper(name) for name in papers] or list(catalogue.PAPERS)
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
    from classwise.papers.catalogue import EXPERIMENTS

    return [str(scale) for scale in EXPERIMENTS.load(item.id).scales] if item.id in EXPERIMENTS else []


def _run_at(item: Item, store: Store | None) -> list[str]:
    """Scales at which a store has a result of an item."""
    return [scale for scale in _scales(item) if store is not None and store.result_file(item.id, scale).is_file()]


def _short(text: str, letters: int = 44) -> str:
    return text if len(text) <= letters else text[: letters - 1].rstrip() + "…"


def _facts(item: Item) -> dict[str, Any]:
    """An item as JSON."""
    from classwise.papers.catalogue import EXPERIMENTS
    from classwise.papers.settings_tables import comparisons

    facts = dataclasses.asdict(item)
    del facts["absent"]
    status = {"status": item.status, "command": item.command, "missing": item.missing, "scales": _scales(item)}
    compared = comparisons(item.id) if item.id in EXPERIMENTS else {}
    settings = {scale: one.facts() for scale, one in compared.items()}
    return {**facts, **status, "settings": settings}


def _show(names: list[str], json: bool) -> None:
    from classwise.papers import catalogue
    from classwise.papers.printed import printed_table

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
            _show_table(table)
        if item.status == "runnable":
            _show_settings(item)
        for note in item.notes:
            typer.echo(f"note {note.id} ({note.kind}): {note.text}")


def _show_settings(item: Item) -> None:
    """Print the settings of the paper and of each scale, and their deviations."""
    from classwise.papers.settings_tables import comparisons, deviation_lines, settings_table

    typer.echo("")
    table = settings_table(item.id)
    if table is not None:
        _show_table(table)
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
    from classwise.papers.catalogue import EXPERIMENTS

    typer.echo(f"{item.id}: {item.title}")
    source = catalogue.facts(item.paper)["bibliography"]
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
    if item.id in EXPERIMENTS:
        for scale in EXPERIMENTS.load(item.id).scales.values():
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
    models: list[str],
    data: str,
) -> None:
    from classwise.papers.runner import check_inputs, run, scale_of
    from classwise.papers.store import Store
    from classwise.papers.user_inputs import UserInputs

    inputs = UserInputs(models=models, data=data)
    for name in names:  # all of them before any work
        scale_of(name, scale)
        check_inputs(name, scale, inputs)
    if scale == "full" and device == "cpu":
        typer.echo("full scale on a CPU takes days per network; use --device cuda or --scale reduced", err=True)
    kept = Store(new_folder(store))
    results = []
    for name in names:
        with console.resumable("repeat the command to continue"), console.progress() as listener:
            options: dict[str, Any] = {"device": device, "inputs": inputs, "trainings": trainings}
            results.append(run(name, scale, kept, progress=listener, **options))
        if not json:
            _report(results[-1])
    if json:
        console.show_json(_results_facts(results))
    elif len(results) > 1:
        _report_together(results)


def _report_together(results: list[Result]) -> None:
    """Print the verdicts that change if all claims of this call are corrected jointly instead of per item."""
    from classwise.papers.evidence import verdict_text
    from classwise.papers.page import corrected
    from classwise.papers.verdict_tables import answer_text

    typer.echo("Joint Holm correction of all claims of a paper in this call:")
    together = corrected(results)
    triples = [
        (single, joint, after.evidence)
        for before, after in zip(results, together, strict=True)
        for single, joint in zip(before.verdicts, after.verdicts, strict=True)
    ]
    changed = 0
    for single, joint, evidence in triples:
        separately = verdict_text(single, evidence, short=True)
        if verdict_text(joint, evidence, short=True) != separately:
            changed += 1
            typer.echo(f"{single.claim} {answer_text(joint, evidence)} (separately: {separately}): {single.estimand}")
    if not changed:
        typer.echo(f"none of the {len(triples)} verdicts change")
    for line in _claim_lines(together):
        typer.echo(line)


def _claim_lines(results: Sequence[Result]) -> list[str]:
    """A line for each claim of several parts; its verdict requires that all parts were tested."""
    from classwise.papers import catalogue
    from classwise.papers.verdict_tables import claim_text, claim_verdict

    verdicts = [(result.item, one) for result in results for one in result.verdicts]
    evidence = {result.item: result.evidence for result in results}
    lines = []
    for claim in dict.fromkeys(one.claim for _, one in verdicts if one.covers):
        text = claim_text(claim_verdict(claim, verdicts), evidence)
        lines.append(f"{claim} as a whole: {text}: {catalogue.claim(claim)['claim']}")
    return lines


def _results_facts(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Results as JSON; a claim of several parts has an answer only if all parts were tested."""
    from classwise.papers.verdict_tables import PARTLY, claim_verdict

    verdicts = [(result.item, one) for result in results for one in result.verdicts]
    found = []
    for result in results:
        facts = result.to_json()
        for plain in facts["verdicts"]:
            summary = claim_verdict(plain["claim"], verdicts)
            plain["answer_of_part"] = plain["answer"] if plain["covers"] else None
            plain["tested"], plain["not_tested"] = list(summary.tested), list(summary.untested)
            if summary.partial:
                plain["answer"] = PARTLY
        found.append(facts)
    return found


def _report(result: Result) -> None:
    from classwise.papers.catalogue import find

    typer.echo(f"{result.item} at scale {result.scale}: {result.setting}")
    for table in result.tables:
        typer.echo("")
        _show_table(table)
    typer.echo("")
    for verdict in result.verdicts:
        for line in _verdict_lines(verdict, result.evidence):
            typer.echo(line)
    for measurement in result.measurements:
        for line in _measurement_lines(measurement):
            typer.echo(line)
    for line in _claim_lines([result]):
        typer.echo(line)
    for note in find(result.item).notes:
        typer.echo(f"note {note.id} ({note.kind}): {note.text}")
    typer.echo("")


def _verdict_lines(verdict: Verdict, evidence: Evidence) -> list[str]:
    from classwise.papers.catalogue import claim
    from classwise.papers.verdict_tables import answer_text, estimate_text

    value, span = estimate_text(verdict)
    about = "" if verdict.covers else f": {claim(verdict.claim)['claim']}"
    lines = [f"{verdict.claim}{',' if verdict.covers else ''} {answer_text(verdict, evidence)}{about}"]
    if verdict.estimand:
        lines.append(f"  {verdict.estimand}: {value} {span}".rstrip())
    return [*lines, *([f"  {verdict.note}"] if verdict.note else [])]


def _measurement_lines(measurement: Measurement) -> list[str]:
    from classwise.papers.catalogue import claim, is_question
    from classwise.papers.verdict_tables import OPEN, measurement_text

    kind = OPEN if is_question(measurement.question) else "measurement"
    value, span = measurement_text(measurement)
    interval = f" ({span}; 95 % interval for {measurement.population})" if span else ""
    return [
        f"{measurement.question} {kind}: {claim(measurement.question)['claim']}",
        f"  {measurement.quantity}: {value}{interval}",
    ]


def _show_table(table: Table) -> None:
    rows = [
        (row.name, *(f"{cell.text} [{cell.span}]" if cell.span else cell.text for cell in row.cells))
        for row in table.rows
    ]
    console.show(table.heads, rows, table.caption)
    if table.note:
        typer.echo(table.note)


def _page(papers: list[str], store: Path, out: Path | None) -> None:
    from classwise.papers import catalogue
    from classwise.papers.page import paper_page
    from classwise.papers.store import Store

    chosen = [catalogue.paper(name) for name in papers] or list(catalogue.PAPERS)
    if not store.exists():
        raise ClasswiseError(f"no store at {store}; papers run ID --store {store} makes one")
    kept, folder = Store(store), out or store / "pages"
    targets = {name: new_file(folder / f"{name}.html", "--out") for name in chosen}
    for name, target in targets.items():
        assert target is not None
        typer.echo(f"page: {paper_page(name, kept, target)}")
