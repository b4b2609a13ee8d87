"""``classwise view``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.help import DATA
from classwise.cli.options import DataOptions, Root, data_options, new_folder, out_option, single_sources


def view(
    audits: Annotated[
        list[str],
        typer.Argument(
            metavar="AUDIT [AUDIT]", help="One or two audits, or runs with one audit each; NAME=AUDIT names one."
        ),
    ],
    out: Annotated[Path | None, out_option("The folder of the site.", "view in the folder of the audit")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="NAME|PATH",
            help="The audited images.",
            show_default="the named data set of the audit, if it is on this machine",
            rich_help_panel=DATA,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", metavar="NAME", help="Split of the data.", show_default="as audited", rich_help_panel=DATA
        ),
    ] = None,
    root: Root = None,
    data_set: DataOptions = None,
) -> None:
    """Write a viewer of an audit's classes and images.

    A static site that opens from disk: no server, no network. Two audits of the same images are shown side by side:
    what was lost and gained, with a paired test. Adversarial images are shown if the audit saved them (--save images).
    Notes and tags on images are exported as notes.json, and read from the folder of the audit.
    The site embeds images of the data.

    \b
    Examples:
        classwise audit runs/at --save images --out audits/at
        classwise view audits/at
        classwise view audits/at audits/cfa --out site
        classwise view audits/photos --data photos/ --data-set size=64
    """  # noqa: D301  # \b keeps the lines of the example apart
    if out is not None:
        new_folder(out)
    sources = single_sources(audits, "audits")
    options = {"split": split, "root": root, **data_options(data_set)}
    page = cw.view(sources, out, data=data, **{key: value for key, value in options.items() if value is not None})
    console.echo(f"page: {page}")
