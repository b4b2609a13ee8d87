"""``classwise sweep``."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.cluster import ClusterOptions
from classwise.cli.help import COMPUTE, PanelCommand, PanelGroup
from classwise.cli.options import Json, RatesName, check_device, grouped, measured_rates, new_folder, out_option
from classwise.cli.report import ExportOptions
from classwise.core.errors import ClasswiseError, IncompleteError, printable, quoted

if TYPE_CHECKING:
    from rich.table import Table

    from classwise.core.compute.rates import Rates
    from classwise.core.progress.listener import Progress
    from classwise.sweeps.status import CellStatus

SECONDS_BETWEEN_UPDATES = 1.0
MOST_ROWS = 40
"""Cells in a live table; running and failed ones come first."""
COLUMNS = ("cell", "state", "progress", "left", "host", "error")


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a sweep.")]


class PlanOrCommand(PanelGroup):
    """The group; ``sweep plan.yaml`` is short for ``sweep run plan.yaml``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word; `run` if the word has the suffix of a file."""
        return super().resolve_command(ctx, ["run", *args] if Path(args[0]).suffix else args)


sweep = typer.Typer(
    name="sweep",
    cls=PlanOrCommand,
    help="""Train and audit every cell of a plan.

    Cells are combinations of recipes, budgets, data, overrides and seeds,
    and of models and data, which are audited without a training.

    A cell that fails does not stop the others. sweep plan.yaml is short for sweep run plan.yaml.
    """,
)


@sweep.command(cls=PanelCommand)
@grouped
def run(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The plan, a YAML file.")],
    cluster: ClusterOptions,
    out: Annotated[Path | None, out_option("The sweep's folder.", "sweeps/PLAN")] = None,
    gpus_per_cell: Annotated[
        int | None,
        typer.Option(
            "--gpus-per-cell",
            metavar="N",
            min=0,
            help="GPUs of each cell; several start torchrun.",
            show_default="1 for cuda, else 0",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="cpu|cuda", help="Of each cell.", rich_help_panel=COMPUTE)
    ] = "cpu",
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Time a few steps of each method, print passes and hours, then exit.",
            rich_help_panel=COMPUTE,
        ),
    ] = False,
    rates: RatesName = None,
    json: Json = False,
) -> None:
    """Start a sweep, or continue it with a larger plan.

    \b
    Examples:
        classwise sweep run plan.yaml --estimate
        classwise sweep run plan.yaml --estimate --rates h100
        classwise sweep run plan.yaml --out sweeps/x --workers 2
        classwise sweep run plan.yaml --on ray --ray-address auto --device cuda
        classwise sweep run plan.yaml --on slurm \\
            --slurm partition=gpu,timeout_min=600
    """  # noqa: D301  # \b keeps the lines of the example apart
    if device not in ("cpu", "cuda"):
        raise ClasswiseError(f"--device {device}: the executor selects the GPUs of a cell; use --device cuda or cpu")
    if gpus_per_cell and device == "cpu":
        raise ClasswiseError(f"--gpus-per-cell {gpus_per_cell} requires --device cuda")
    measured = measured_rates(rates, estimate=estimate)
    if estimate or cluster.on in (None, "local"):
        check_device(device)
    if estimate:
        _estimate(plan, cluster.workers or 1, device, rates, measured, json)
        return
    folder = new_folder(out or Path("sweeps") / Path(plan).stem)
    gpus = int(device == "cuda") if gpus_per_cell is None else gpus_per_cell
    executor = {"gpus": gpus, **cluster.given}
    with _resumable(folder) as listener:
        cells = cw.sweep(plan, out=folder, executor=executor, device=device, processes=max(gpus, 1), progress=listener)
    _report(folder, cells, json)


@sweep.command(cls=PanelCommand)
@grouped
def resume(folder: Folder, cluster: ClusterOptions, json: Json = False) -> None:
    """Run unfinished cells where they ran before, or elsewhere.

    \b
    Example:
        classwise sweep resume sweeps/x
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.sweeps.executors.run import resume_sweep

    with _resumable(folder) as listener:
        cells = resume_sweep(folder, executor=cluster.given, progress=listener)
    _report(folder, cells, json)


@sweep.command(cls=PanelCommand)
def status(folder: Folder, json: Json = False) -> None:
    """Print the state of every cell, also while cells run.

    \b
    Example:
        classwise sweep status sweeps/x
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.sweeps.status import is_alive, owner_host, sweep_status

    cells = sweep_status(folder)
    if json or not sys.stdout.isatty():
        _show(cells, json)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(_table(cells), console=Console(markup=False), auto_refresh=False) as live:
        while any(cell.state == "running" for cell in cells) or is_alive(folder, owner_host(folder)):
            time.sleep(SECONDS_BETWEEN_UPDATES)
            cells = sweep_status(folder)
            live.update(_table(cells), refresh=True)


@sweep.command(cls=PanelCommand)
@grouped
def collect(
    exported: ExportOptions,
    folder: Folder,
    out: Annotated[Path | None, out_option("The folder of the files.", "results, in the sweep")] = None,
    json: Json = False,
) -> None:
    """Write tables, a figure and a page of all finished audits.

    \b
    Examples:
        classwise sweep collect sweeps/x
        classwise sweep collect sweeps/x --export tex,pdf \\
            --columns overall,worst
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.cli.compare import comparison_facts
    from classwise.sweeps.collect import collect

    files = new_folder(exported.files) if exported.files is not None else None
    collected = collect(folder, out, exported.formats, files=files, **exported.settings)
    missing = [{"cell": cell, "audit": audit, "state": state} for (cell, audit), state in collected.missing.items()]
    if json:
        groups = [
            {"data": group.data, "audit": group.audit, "threat": group.threat, **comparison_facts(group.comparison)}
            for group in collected.groups
        ]
        console.show_json({"groups": groups, "missing": missing, "files": [str(file) for file in collected.files]})
        return
    for group in collected.groups:
        console.echo(group.title)
        console.show_result(group.comparison)
        console.echo("")
    if missing:
        console.show(("cell", "audit", "state"), [tuple(row.values()) for row in missing], "not compared")
    console.echo(*(f"file: {file}" for file in collected.files))


@contextlib.contextmanager
def _resumable(folder: Path) -> Iterator[Progress]:
    """Context of running cells: shows the progress, and states how to continue after an interruption."""
    with console.resumable(f"continue with classwise sweep resume {quoted(folder)}"), console.progress() as listener:
        yield listener


def _report(folder: Path, cells: Sequence[CellStatus], json: bool) -> None:
    """Print the status of the cells.

    Raises:
        IncompleteError: if a cell is not finished.
    """
    from classwise.sweeps.cells import SweepFolder
    from classwise.sweeps.status import counts_text, unfinished

    _show(cells, json)
    if unfinished(cells):
        how = f"continue with classwise sweep resume {quoted(folder)}"
        raise IncompleteError(f"{counts_text(cells)} of the cells in {folder}; {how}")
    if not json and any(cell.audits for cell in SweepFolder.open(folder).cells()):
        console.echo(f"next: classwise sweep collect {quoted(folder)}")


def _estimate(plan: str, workers: int, device: str, name: str | None, rates: Rates | None, json: bool) -> None:
    from classwise.sweeps.cost import estimate_sweep
    from classwise.sweeps.plan import Plan

    with console.progress() as listener:
        cost = estimate_sweep(Plan.read(plan), device=device, rates=rates, progress=listener)
    if json:
        console.show_json({**cost._asdict(), "hours": cost.hours, "workers": workers, "rates": name})
        return
    training, audits, whole = (
        console.duration(3600 * hours) for hours in (cost.training_hours, cost.audit_hours, cost.hours / workers)
    )
    console.echo(f"{cost.cells:,} cells: at most {cost.passes:,} forward and backward passes of one image")
    device = str(rates or device)
    console.echo(f"training {training} without validation, audits at most {audits} without guards, on one {device}")
    console.echo(f"on {workers} {'worker' if workers == 1 else 'workers'} of this speed: {whole}")


def _show(cells: Sequence[CellStatus], json: bool) -> None:
    """Print the status of every cell."""
    from classwise.sweeps.status import counts_text

    if json:
        console.show_json([dataclasses.asdict(cell) for cell in cells])
        return
    console.show(COLUMNS, [_row(cell) for cell in cells], counts_text(cells))


def _row(cell: CellStatus) -> tuple[str, ...]:
    attempts = f"{cell.state} (attempt {cell.attempts})" if cell.attempts > 1 else cell.state
    return cell.name, attempts, cell.progress, cell.left, cell.host, cell.error


def _table(cells: Sequence[CellStatus]) -> Table:
    """A table of the cells in question first: at most `MOST_ROWS`."""
    from rich.table import Table
    from rich.text import Text

    from classwise.sweeps.status import counts_text

    order = ("running", "failed", "killed", "stopped", "queued", "finished")
    shown = sorted(cells, key=lambda cell: order.index(cell.state))[:MOST_ROWS]
    more = f"; {MOST_ROWS} of {len(cells)} cells are shown" if len(cells) > MOST_ROWS else ""
    table = Table(title=Text(counts_text(cells) + more), title_justify="left")
    for column in COLUMNS:
        table.add_column(column)
    for cell in shown:
        table.add_row(*(Text(printable(text)) for text in _row(cell)))
    return table
