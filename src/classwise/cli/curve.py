"""``classwise curve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.cluster import ClusterOptions
from classwise.cli.evaluation import COMPUTED, Flags, flags, threat_of
from classwise.cli.help import ATTACK
from classwise.cli.inputs import DataSource, ModelSource
from classwise.cli.options import (
    Json,
    Page,
    Resume,
    grouped,
    new_file,
    out_option,
    printing_beside,
)
from classwise.cli.sharding import ShardOptions, options_of, run_tasks

if TYPE_CHECKING:
    from torch import nn

    from classwise.threat.ball import Norm


@grouped
def curve(
    model: ModelSource,
    data: DataSource,
    asked: Annotated[Flags, flags(*COMPUTED)],
    sharding: ShardOptions,
    cluster: ClusterOptions,
    *,
    threat: Annotated[
        str | None,
        typer.Option(
            "--threat",
            metavar="NORM:RADIUS",
            help="Norm and largest radius.",
            show_default="that of the run or the data set, at twice the radius",
            rich_help_panel=ATTACK,
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", metavar="N", help="Number of bisections.", show_default="6", rich_help_panel=ATTACK),
    ] = None,
    out: Annotated[
        Path | None,
        out_option(
            "The curve's folder.", "RUN/curves/curve-DATA-SPLIT[-WEIGHTS]; without a run audits/MODEL-curve-DATA-SPLIT"
        ),
    ] = None,
    resume: Resume = False,
    html: Page = None,
    json: Json = False,
) -> None:
    """Compute robust accuracy per class at every radius.

    For every image, bisection finds the smallest radius at which an attack succeeds.

    \b
    Examples:
        classwise curve runs/cfa
        classwise curve runs/cfa --threat Linf:16/255 --attack pgd:steps=20
        classwise curve runs/cfa --out curves/cfa --resume
        classwise curve runs/cfa --shards 8 --on local --workers 2
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.core.compute.distributed import launched, local_device, process_group

    ball = threat_of(threat, None)
    page = new_file(html, "--html", json=json)
    options = asked.options
    sharding.check(cluster, str(options["device"]), html=html)
    run = model.single_run(needed=data.data is None)
    with launched():
        device = sharding.device(cluster, local_device(str(options["device"])), options)
        images = data.load(run, options["seed"])
        network = model.load(images, device)
        name = f"curve-{images.name}-{images.split}"
        folder = out or sharding.place(model.folder(run, "curves", name))
        settings: dict[str, Any] = {**options, "device": device}
        settings |= {} if rounds is None else {"rounds": rounds}
        norm, highest = _range(ball, run)
        settings |= {"highest": highest, "out": folder, "resume": resume}
        settings |= sharding.arguments
        with process_group() as processes:
            if cluster.on is None:
                with console.resumable("continue with --resume", saved=resume), console.progress() as listener:
                    found = cw.robustness_curve(network, images, norm, asked.suite, progress=listener, **settings)
            else:
                given = {**vars(model), **vars(data), **vars(asked), "threat": threat, "rounds": rounds}
                found = _run_shards(network, images, norm, asked.suite, settings, given, sharding, cluster)
            if not processes.is_main:
                return
            if sharding.shard is not None:
                sharding.conclude(folder, len(found.frame), json=json)
            else:
                _write(found, folder, page or folder / "page.html", json=json)


def _range(ball: cw.Threat | None, run: cw.Run | None) -> tuple[Norm, float | None]:
    """The norm and the largest radius: those given, else the norm of the run and twice its radius."""
    if ball is not None:
        return ball.norm, float(ball.epsilon)
    trained = threat_of(None, run)
    return ("Linf", None) if trained is None else (trained.norm, 2 * float(trained.epsilon))


def _run_shards(
    network: nn.Module | str,
    images: cw.Images,
    norm: Norm,
    attacks: list[str] | None,
    settings: dict[str, Any],
    given: dict[str, Any],
    sharding: ShardOptions,
    cluster: ClusterOptions,
) -> cw.Curve:
    """Run the shards of a curve and their merge as tasks, and load the merged curve."""
    from classwise.auditing.curve.search import claim_for_shards, is_finished

    plan = claim_for_shards(network, images, norm, attacks, **settings)
    if not is_finished(settings["out"]):
        run_tasks("curve", given | options_of(plan), settings["out"], sharding, cluster, is_finished)
    return cw.Curve.load(settings["out"])


def _write(found: cw.Curve, folder: Path, page: Path, *, json: bool) -> None:
    """Write the tables, the figure and the page, and print the radii of each class."""
    cw.export(found, folder, ("csv", "md", "png", "svg"))
    with printing_beside(page):
        cw.report(found, page)
        if json:
            facts = {"folder": str(folder), "page": str(page), "highest": found.highest, "width": found.width}
            classes = {str(name): row.to_dict() for name, row in found.summary.iterrows()}
            console.show_json(facts | {"weakest": found.weakest, "classes": classes, "environment": found.environment})
            return
        console.show_result(found)
        console.echo(f"curve: {folder}")
        console.echo(f"page: {page}")
