"""``classwise worst-class``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.evaluation import COMPUTED, Flags, flags
from classwise.cli.help import ATTACK, COMPUTE
from classwise.cli.inputs import DataSource, ModelSource
from classwise.cli.options import (
    Json,
    Page,
    Resume,
    check_device,
    grouped,
    new_file,
    out_option,
    printing_beside,
    share,
)
from classwise.core.errors import ClasswiseError


@grouped
def worst_class(
    model: ModelSource,
    data: DataSource,
    asked: Annotated[Flags, flags("threat", *COMPUTED, "max_time")],
    *,
    confidence: Annotated[
        str,
        typer.Option(
            "--confidence", metavar="SHARE", help="Confidence of the result, between 0 and 1.", rich_help_panel=ATTACK
        ),
    ] = "0.95",
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="SHARE",
            help="Tolerance on the worst-class accuracy, such as 2%.",
            show_default="0; 2% from 100 classes on",
            rich_help_panel=ATTACK,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        out_option("Folder for the search state and the page.", "none"),
    ] = None,
    resume: Resume = False,
    html: Page = None,
    json: Json = False,
    shards: Annotated[
        int | None, typer.Option("--shards", metavar="N", help="Refused.", hidden=True, rich_help_panel=COMPUTE)
    ] = None,
) -> None:
    """Find the worst class without a full audit.

    The result is valid at a stated confidence: the whole suite attacks only a sample of the images.

    \b
    Examples:
        classwise worst-class runs/cfa
        classwise worst-class runs/cfa --tolerance 1% --confidence 0.99
        classwise worst-class runs/cfa --out audits/worst --resume
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.core.compute.distributed import launched, local_device
    from classwise.core.settings.arguments import check

    if shards is not None:
        raise ClasswiseError(
            "--shards does not apply to worst-class: each round of the search attacks classes that the previous rounds "
            "left undecided; use classwise audit --shards"
        )
    asked.threat_of(None)  # validated before anything is loaded
    settings: dict[str, Any] = {
        **asked.options,
        "confidence": share(confidence, "--confidence", "0.95 or 95%"),
        "tolerance": None if tolerance is None else share(tolerance, "--tolerance", "0.02 or 2%"),
        "out": out,
        "resume": resume,
    }
    check(cw.find_worst_class, settings)  # before anything is loaded
    if resume and out is None:
        raise ClasswiseError("--resume requires --out, the folder of the search")
    page = new_file(html, "--html", json=json)
    run = model.single_run(needed=data.data is None)
    ball = asked.threat_of(run)
    with launched() as processes:
        device = check_device(local_device(str(settings["device"])))
        images = data.load(run, settings["seed"])
        network = model.load(images, device)
        if not processes.is_main:
            return
        with console.resumable("continue with --resume", saved=resume), console.progress() as listener:
            found = cw.find_worst_class(
                network, images, ball, asked.suite, progress=listener, **{**settings, "device": device}
            )
        _write(found, page or (None if out is None else out / "page.html"), json=json)


def _write(found: cw.WorstClass, page: Path | None, *, json: bool) -> None:
    """Write the page, if requested, and print the result."""
    with printing_beside(page):
        if page is not None:
            cw.report(found, page)
        if json:
            console.show_json(worst_class_facts(found) | ({} if page is None else {"page": str(page)}))
            return
        console.show_result(found)
        if page is not None:
            console.echo(f"page: {page}")


def worst_class_facts(result: cw.WorstClass) -> dict[str, Any]:
    """A search as JSON; accuracies are fractions, and ``low`` and ``high`` are for these images."""
    from classwise.reporting import formatting

    verdict = result.verdict
    new_low, new_high = verdict.new_images
    return {
        "worst": {
            "class": result.worst,
            "accuracy": verdict.estimate,
            "low": verdict.low,
            "high": verdict.high,
            "new_low": new_low,
            "new_high": new_high,
            "interval": formatting.lowest_interval_name(verdict.alpha),
            "possibly": list(result.possibly),
        },
        "settled": verdict.settled,
        "guarantee": result.sentence,
        "confidence": 1 - verdict.alpha,
        "tolerance": verdict.tolerance,
        "population": result.population,
        "suite": {name: spec for name, spec in result.meta.attacks.items() if spec is not None},
        "threat": result.meta.threat,
        "seed": result.meta.seed,
        "unsettled": verdict.unsettled,
        "passes": result.passes,
        "full_audit_passes": result.full_audit_passes,
        "rounds": result.rounds,
        "seconds": result.seconds,
        "environment": result.environment,
        "classes": result.by_class.to_dict("index"),
    }
