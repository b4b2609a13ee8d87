"""``classwise evidence``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.exit_status import ExitStatus
from classwise.cli.help import OUTPUT, DefaultGroup, PanelCommand
from classwise.cli.options import Json, new_folder, out_option
from classwise.core.errors import IncompleteError, printable

evidence = typer.Typer(
    name="evidence",
    cls=DefaultGroup,
    help="""Report audits against a policy, or verify it.

    The word write may be left out: classwise evidence AUDIT --policy FILE.
    """,
)


@evidence.command(cls=PanelCommand)
def write(
    audits: Annotated[list[Path], typer.Argument(metavar="AUDIT...", help="Audits, or runs with one audit each.")],
    policy: Annotated[
        Path,
        typer.Option("--policy", metavar="FILE", help="The policy, a YAML file.", rich_help_panel=OUTPUT),
    ],
    out: Annotated[Path, out_option("The folder of the report.", metavar="DIR")] = Path("evidence"),
    json: Json = False,
) -> None:
    """Write an evidence report: page, JSON, policy and digests.

    The exit status is 1 if a criterion of the policy failed, and 3 if one is
    undecided.

    \b
    Examples:
        classwise evidence audits/a --policy policy.yaml --out evidence
        classwise evidence audits/a audits/b --policy policy.yaml
    """  # noqa: D301  # \b keeps the lines of the example apart
    report = cw.evidence([*audits], policy, new_folder(out))
    if json:
        console.show_json(report.facts)
    else:
        console.echo(report.facts["criteria_sentence"])
        for audit in report.facts["audits"]:
            for row in audit["criteria"]:
                console.echo(f"{audit['name']}: {row['status']}: {row['fails_if']}: {row['detail']}")
        console.echo(f"verdict: {report.verdict}")
        console.echo(f"page: {report.page}")
    if report.verdict == "failed":
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)
    if report.verdict == "undecided":
        raise IncompleteError("a criterion of the policy is undecided; complete the audit with --resume")


@evidence.command(cls=PanelCommand)
def verify(
    folder: Annotated[Path, typer.Argument(metavar="EVIDENCE", help="The folder of the report.")],
    audits: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[AUDIT...]",
            help="The audits of the report, in its order.",
            show_default="the paths in the manifest",
        ),
    ] = None,
) -> None:
    """Compute digests and verdict again from the outcomes.

    The exit status is 1 if anything differs. Python files of yours that were audited are compared with those of the
    working directory, without an effect on the status.

    \b
    Example:
        classwise evidence verify evidence audits/a
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.reporting.evidence.build import code_notes
    from classwise.reporting.evidence.build import verify as differences

    found = differences(folder, audits or [])
    for line in found:
        console.print_error(printable(f"differs: {line}"))
    if found:
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)
    console.echo(f"{folder}: the digests match, and its audits and its policy give the same report")
    for line in code_notes(folder):
        console.echo(printable(line))
