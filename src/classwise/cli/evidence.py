"""``classwise evidence``."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.builds import NOT_AS_REQUIRED
from classwise.cli.exit_status import ExitStatus
from classwise.cli.help import EVALUATION, OUTPUT, DefaultGroup, PanelCommand
from classwise.cli.inputs import ImageSource, ModelSource
from classwise.cli.options import Json, grouped, new_folder, out_option
from classwise.core.errors import ClasswiseError, IncompleteError, printable

evidence = typer.Typer(
    name="evidence",
    cls=DefaultGroup,
    help="""Report audits against a policy, or verify it.

    The word write may be left out: classwise evidence AUDIT --policy FILE.
    """,
)


@evidence.command(cls=PanelCommand)
def write(
    audits: Annotated[
        list[Path],
        typer.Argument(
            metavar="AUDIT...",
            help="Audits, or runs with one audit each; and curves, worst-class searches and corruptions.",
        ),
    ],
    policy: Annotated[
        Path,
        typer.Option("--policy", metavar="FILE", help="The policy, a YAML file.", rich_help_panel=OUTPUT),
    ],
    out: Annotated[Path, out_option("The folder of the report.", metavar="DIR")] = Path("evidence"),
    card: Annotated[
        bool,
        typer.Option("--card", help="Also write a model card for the Hugging Face Hub.", rich_help_panel=OUTPUT),
    ] = False,
    json: Json = False,
) -> None:
    """Write an evidence report: page, JSON, policy and digests.

    The exit status is 1 if a criterion of the policy failed, and 3 if one is
    undecided, or the audit is not as the policy requires.

    \b
    Examples:
        classwise evidence audits/a --policy policy.yaml --out evidence
        classwise evidence audits/a audits/a-curve --policy policy.yaml
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.reporting.evidence.build import CARD
    from classwise.reporting.evidence.facts import other_text
    from classwise.reporting.evidence.supplements import kind_of

    report = cw.evidence([*audits], policy, new_folder(out), card=card)
    with console.status_decided():
        if json:
            console.show_json(report.facts)
        else:
            console.echo(report.facts["criteria_sentence"])
            folders = [path for path in audits if kind_of(path) is None]
            for folder, audit in zip(folders, report.facts["audits"], strict=True):
                lines = [f"{row['status']}: {row['detail']}" for row in audit["criteria"]]
                lines += [f"not as required: {line}" for line in audit["not_as_required"]]
                lines += [f"beside it: {other['name']}: {other_text(other)}" for other in audit["others"]]
                console.echo(*(printable(f"{folder}: {line}") for line in lines))
            console.echo(f"verdict: {report.verdict}")
            console.echo(f"report number: {report.facts['number']}")
            console.echo(f"page: {report.page}")
            if card:
                console.echo(f"card: {report.folder / CARD}")
    if report.verdict == "failed":
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)
    if report.verdict == "not as required":
        raise IncompleteError(NOT_AS_REQUIRED)
    if report.verdict == "undecided":
        raise IncompleteError("a criterion of the policy is undecided; complete the audit with --resume")


@dataclass(frozen=True)
class NamedModel(ModelSource):
    """`ModelSource` as an option; None: weights alone name their model, or nothing is compared."""

    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="MODEL", help="Compare this model, as of classwise audit.", show_default="not compared"
        ),
    ] = ""

    @property
    def given(self) -> bool:
        """Whether there is a model to compare."""
        return bool(self.model or self.weights)


@dataclass(frozen=True)
class NamedImages(ImageSource):
    """`ImageSource` without images of a run."""

    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="Compare these images.", show_default="not compared"),
    ] = None

    @property
    def given(self) -> bool:
        """Whether there are images to compare."""
        return self.data is not None


def check_alone(source: NamedImages | NamedModel, needed: str) -> None:
    """Refuse the options of a source that is not named.

    Raises:
        ClasswiseError: naming the first such option that was given.
    """
    for field in fields(source):
        if getattr(source, field.name) not in (field.default, []):
            raise ClasswiseError(f"--{field.name.replace('_', '-')} requires {needed}")


@evidence.command(cls=PanelCommand)
@grouped
def verify(
    folder: Annotated[Path, typer.Argument(metavar="EVIDENCE", help="The folder of the report.")],
    audits: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[AUDIT...]",
            help="The audits of the report in its order, or repetitions of them.",
            show_default="the paths in the manifest",
        ),
    ] = None,
    *,
    model: NamedModel,
    data: NamedImages,
    rerun: Annotated[
        str | None,
        typer.Option(
            "--rerun",
            metavar="N|all",
            help="Attack N random images, or all, again and compare the outcomes; needs --model and --data.",
            show_default="no",
            rich_help_panel=EVALUATION,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            help="Seed of the sample of --rerun.",
            show_default="random",
            rich_help_panel=EVALUATION,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="Where to run.", rich_help_panel=EVALUATION)
    ] = "cpu",
) -> None:
    """Compute digests and verdict again from the outcomes.

    The exit status is 1 if anything differs, and 0 also for a report whose
    verdict is failed. Python files of yours that were audited are compared with those of the
    working directory, without an effect on the status unless --model names the model.

    \b
    Examples:
        classwise evidence verify evidence audits/a
        classwise evidence verify evidence --data photos/ \\
            --model mynet:build --weights net.pt --rerun 100
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.reporting.evidence.build import code_notes, seed_of_images
    from classwise.reporting.evidence.build import verify as verified

    for needed, source in (("--data", data), ("--model", model)):
        if not source.given:
            check_alone(source, needed)
    if seed is not None and rerun is None:
        raise ClasswiseError("--seed requires --rerun")
    number: int | Literal["all"] | None = None
    if rerun is not None:
        if rerun != "all" and not (rerun.isdecimal() and int(rerun)):
            raise ClasswiseError(f"--rerun {rerun}: must be a positive number of images, or all")
        number = "all" if rerun == "all" else int(rerun)
        if not (data.given and model.given):
            raise ClasswiseError("--rerun needs the model and the images: --model and --data")
    images, network = None, None
    if data.given:
        name, options = data.source(None)
        images = cw.load_data(name, seed=seed_of_images(folder), **options)
    if model.given:
        source = model if model.model else replace(model, model=str(model.weights), weights=None)
        loaded = source.load(images, device)
        network = cw.load_model(loaded, data=images, device=device) if isinstance(loaded, str) else loaded
    found = verified(folder, audits or [], model=network, images=images, rerun=number, seed=seed)
    for line in found.differences:
        console.print_error(printable(f"differs: {line}"))
    with console.status_decided():
        if not found.differences:
            console.echo(printable(f"{folder}: the digests match, and its audits and its policy give the same report"))
        for line in (*found.notes, *code_notes(folder)):
            console.echo(printable(line))
    if found.differences:
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)
