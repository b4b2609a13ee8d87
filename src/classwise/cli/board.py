"""``classwise board``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.help import DATA, OUTPUT
from classwise.cli.options import Json, is_named, new_folder, out_option, pairs
from classwise.core.errors import ClasswiseError

ANSWERS = {"yes": True, "no": False}


def board(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="AUDITS...",
            help="Audits, runs, folders of these, sweeps, board.json files, or JSON files for or from RobustBench; "
            "NAME=AUDIT names a row.",
        ),
    ],
    out: Annotated[Path | None, out_option("Write index.html, board.json and board.csv here.", "none")] = None,
    extra_data: Annotated[
        list[str] | None,
        typer.Option(
            "--extra-data",
            metavar="NAME=yes|no",
            help="Whether a row's model was trained on images beside the data set's own. May be repeated.",
            show_default="from its run, if it is in one",
            rich_help_panel=DATA,
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence",
            metavar="LEVEL",
            help="Confidence level of the intervals, and of the ranks of a table.",
            rich_help_panel=OUTPUT,
        ),
    ] = 0.95,
    json: Json = False,
) -> None:
    """Rank audited models by their worst class.

    Models are in one table only if their audits agree in data, images, threat, attacks with all settings, early stop
    and cascade. A rank is 1 + the number of models that are significantly better. Published overall accuracies of
    RobustBench are listed apart, without ranks.

    \b
    Examples:
        classwise board audits --out board
        classwise board at=runs/at ours=audits/ours --extra-data ours=yes
        classwise board board/board.json new=audits/new --out board
        classwise board audits model_info/cifar10/Linf/*.json --out board
    """  # noqa: D301  # \b keeps the lines of the example apart
    folder = None if out is None else new_folder(out)
    answers = pairs(extra_data, "--extra-data")
    for name, answer in answers.items():
        if answer not in ANSWERS:
            raise ClasswiseError(f"--extra-data {name}={answer}: expected yes or no")
    stated = {name: ANSWERS[answer] for name, answer in answers.items()}
    each = [dict([source.split("=", 1)]) if is_named(source) else source for source in sources]
    made = cw.board(each, confidence=confidence, extra_data=stated)
    files = [] if folder is None else [cw.report(made, folder / "index.html"), *made.save(folder)]
    if json:
        console.show_json(made.to_dict())
        return
    console.show_result(made)
    console.echo(*(f"file: {path}" for path in files))
