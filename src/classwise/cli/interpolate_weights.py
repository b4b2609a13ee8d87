"""``classwise interpolate-weights``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.evaluation import Flags, flags
from classwise.cli.fitting import FIT_OPTIONS, FitSource, Seed, fit_arguments
from classwise.cli.help import MODEL
from classwise.cli.inputs import ModelSource
from classwise.cli.options import (
    Json,
    ValidationAttack,
    Weights,
    grouped,
    new_file,
    numbers,
    out_option,
    printing_beside,
)
from classwise.core.errors import ClasswiseError
from classwise.core.rounding import in_percent


@grouped
def interpolate_weights(
    model: ModelSource,
    data: FitSource,
    asked: Annotated[Flags, flags(*FIT_OPTIONS)],
    *,
    which: Weights = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="PATH",
            help="The initial model: a run or weights.",
            show_default="model.weights of the run's recipe",
            rich_help_panel=MODEL,
        ),
    ] = None,
    shares: Annotated[
        str,
        typer.Option(
            "--shares",
            metavar="A,B,...",
            help="Shares of the fine-tuned weights to try: 0 the initial model, 1 the fine-tuned one.",
            rich_help_panel=MODEL,
        ),
    ] = "0,0.3,0.4,0.5,0.6,0.7,1",
    attack: ValidationAttack = "pgd:steps=10,step_size=0.25eps",
    seed: Seed = None,
    out: Annotated[
        Path | None,
        out_option(
            "The weights to write.", "RUN/checkpoints/interpolated.safetensors; required without a run", metavar="FILE"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Interpolate initial and fine-tuned weights.

    MODEL is the fine-tuned model: a run that was started from weights (model.weights), or with --start any other.
    Save the interpolation with the best overall plus worst-class robust accuracy (with more than 20 classes: the worst
    20 %) on the validation split of the run, or for any other model on the images of --data, which should be neither
    training images nor those of a later audit.

    \b
    Examples:
        classwise train faal --out runs/finetune \\
            --set model.weights=runs/at
        classwise interpolate-weights runs/finetune
        classwise interpolate-weights mine:build --weights tuned.pt \\
            --start model.pt --data photos/ --split val \\
            --threat Linf:4/255 --out interpolated.safetensors
    """  # noqa: D301  # \b keeps the lines of the example apart
    target, tried_shares = new_file(out, "--out", json=json), numbers(shares, "--shares") or ()
    given = fit_arguments(model, data, asked, seed, target)
    if given.data is not None and start is None:
        raise ClasswiseError("--start is required for a model that is not a run folder; give the initial weights")
    with console.progress() as listener:
        found = cw.interpolate_weights(
            given.model,
            start,
            given.data,
            given.threat,
            which=which,
            shares=tried_shares,
            attack=attack,
            out=target,
            progress=listener,
            **given.options,
        )
    tried = found.tried.groupby("share", sort=False).agg(score=("score", "first"), worst=("robust", "min"))
    classes = int(found.tried.groupby("share")["robust"].count().max())
    with printing_beside(target):
        if json:
            scores = {f"{share:g}": dict(row) for share, row in tried.iterrows()}
            console.show_json({"weights": str(found.path), "share": found.share, "tried": scores})
            return
        rows = [
            (
                f"{share:g}",
                f"{in_percent(row['score']):.1f}",
                f"{in_percent(row['worst']):.1f}",
                "saved" if share == found.share else "",
            )
            for share, row in tried.iterrows()
        ]
        from classwise.training.worst_classes import resolve_worst

        lowest = {"class": "worst", "fifth": "worst fifth"}[resolve_worst("auto", classes)]
        console.show(["share of the fine-tuned", f"overall + {lowest}, %", "worst class, %", ""], rows)
        typer.echo(f"{found.path}; selected on {given.images}, so its accuracies there are too high on average")
