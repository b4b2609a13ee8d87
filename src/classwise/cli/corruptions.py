"""``classwise corruptions``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classwise.cli import console
from classwise.cli.evaluation import COMPUTED, Flags, flags
from classwise.cli.help import DATA
from classwise.cli.inputs import ImageSource, ModelSource
from classwise.cli.options import Json, Resume, check_device, grouped, out_option
from classwise.core.errors import ClasswiseError
from classwise.reporting.formatting import bare_percent

if TYPE_CHECKING:
    from classwise.auditing.run.corruptions import CorruptionAudits

MOST_CLASSES = 12
"""Largest number of classes whose columns are printed."""


@grouped
def corruptions(
    model: ModelSource,
    data: ImageSource,
    asked: Annotated[Flags, flags("threat", *COMPUTED, attacks="none")],
    *,
    corruption: Annotated[
        list[str] | None,
        typer.Option(
            "--corruption",
            metavar="NAME",
            help="A corruption. May be repeated.",
            show_default="the 15 of the benchmark",
            rich_help_panel=DATA,
        ),
    ] = None,
    severity: Annotated[
        list[int] | None,
        typer.Option(
            "--severity",
            metavar="N",
            min=1,
            max=5,
            help="A severity from 1 to 5. May be repeated.",
            show_default="all five",
            rich_help_panel=DATA,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        out_option(
            "The folder of the audits.",
            "RUN/corruptions/DATA-SPLIT[-WEIGHTS]; without a run audits/MODEL-DATA-SPLIT-corruptions",
        ),
    ] = None,
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Report accuracy per class under corruptions.

    Without --attack, the images are corrupted and not attacked. Every corruption and severity is one audit.

    \b
    Examples:
        classwise corruptions runs/cfa --data cifar10-c
        classwise corruptions runs/cfa --data cifar10 --severity 5 \\
            --corruption fog --corruption snow
        classwise corruptions runs/cfa --data cifar10-c --resume
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.auditing.outcomes.table import CLEAN
    from classwise.auditing.run.corruptions import audit_corruptions
    from classwise.core.compute.distributed import launched, local_device, process_group
    from classwise.data.corruptions.base import SEVERITIES
    from classwise.data.corruptions.corrupt import STANDARD
    from classwise.data.sets.loading import open_corrupted

    run = model.single_run(needed=data.data is None)
    if getattr(asked, "threat", None) is not None and not asked.suite:
        raise ClasswiseError("--threat requires --attack; without an attack, images are only corrupted")
    ball = asked.threat_of(run) if asked.suite else None
    kinds, levels = tuple(corruption or STANDARD), tuple(severity or SEVERITIES)
    source, options = data.source(run)
    settings: dict[str, Any] = {**asked.options}
    options["seed"] = settings["seed"]
    with launched():
        device = check_device(local_device(str(settings["device"])))
        first = open_corrupted(source, kinds[0], levels[0], **options)
        network = model.load(first, device)
        name = f"{first.name.partition(', ')[0]}-{first.split}"
        folder = out or model.folder(run, "corruptions", name if run else f"{name}-corruptions")
        settings["device"] = device
        with process_group() as processes:
            with console.resumable("continue with --resume", saved=resume), console.progress() as listener:
                found = audit_corruptions(
                    network,
                    source,
                    asked.suite or CLEAN,
                    ball,
                    corruptions=kinds,
                    severities=levels,
                    load=options,
                    out=folder,
                    resume=resume,
                    progress=listener,
                    **settings,
                )
            if processes.is_main:
                _write(found, folder, json=json)


def _write(found: CorruptionAudits, folder: Path, *, json: bool) -> None:
    """Write the tables, and print the accuracies of each corruption."""
    from classwise.auditing.outcomes.table import CLEAN
    from classwise.auditing.run.corruptions import MEAN, OVERALL
    from classwise.reporting.facts.comparison_sentences import comparison_warnings

    files = found.save(folder)
    table: dict[Any, dict[Any, float]] = found.by_class().to_dict()
    warnings = comparison_warnings({f"{kind} {severity}": (audit,) for (kind, severity), audit in found.audits.items()})
    if json:
        console.show_json({"folder": str(folder), "accuracy": table, "warnings": warnings})
        return
    classes = [str(name) for name in table[MEAN] if name != OVERALL]
    shown = classes if len(classes) <= MOST_CLASSES else []
    rows = []
    for kind in dict.fromkeys([*(corruption for corruption, _ in found.audits), MEAN]):
        accuracy = table[kind]
        worst = min(classes, key=accuracy.__getitem__)
        values = (accuracy[OVERALL], accuracy[worst], *(accuracy[name] for name in shown))
        first, second, *others = (bare_percent(value) for value in values)
        rows.append((kind, first, second, worst, *others))
    heads = ["corruption", OVERALL, "worst", "worst class", *shown]
    outcomes = next(iter(found.audits.values())).outcomes
    attacked = outcomes.attacks != (CLEAN,)
    threat = f" under {outcomes.meta.threat}" if attacked else ""
    console.show(heads, rows, f"accuracy in percent{threat}, mean over severities", optional=shown[::-1])
    console.echo(*(f"warning ({warning['name']}): {warning['sentence']}" for warning in warnings))
    if not attacked:
        error = bare_percent(1 - table[MEAN][OVERALL])
        console.echo(f"mean corruption error (not relative to a baseline): {error} %")
    console.echo(*(f"table: {file}" for file in files))
