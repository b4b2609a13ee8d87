"""``classwise interpolate-weights``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.help import MODEL
from classwise.cli.options import (
    Device,
    Json,
    ValidationAttack,
    Weights,
    new_file,
    numbers,
    out_option,
    printing_beside,
)


def interpolate_weights(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run that was started from weights (model.weights).")],
    which: Weights = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--start",
            metavar="PATH",
            help="The initial model: a run or weights.",
            show_default="model.weights of the recipe",
            rich_help_panel=MODEL,
        ),
    ] = None,
    shares: Annotated[
        str,
        typer.Option(
            "--shares", metavar="A,B,...", help="Shares of the fine-tuned weights to try.", rich_help_panel=MODEL
        ),
    ] = "0.3,0.4,0.5,0.6,0.7",
    attack: ValidationAttack = "pgd:steps=10,step_size=0.25eps",
    out: Annotated[
        Path | None,
        out_option("The weights to write.", "RUN/checkpoints/interpolated.safetensors", metavar="FILE"),
    ] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Interpolate initial and fine-tuned weights.

    Save the interpolation with the best overall plus worst-class robust accuracy on the validation split.

    \b
    Example:
        classwise train faal --out runs/finetune \\
            --set model.weights=runs/at
        classwise interpolate-weights runs/finetune
    """  # noqa: D301  # \b keeps the lines of the example apart
    target = new_file(out, "--out", json=json)
    with console.progress() as listener:
        found = cw.interpolate_weights(
            run,
            which=which,
            start=start,
            shares=numbers(shares, "--shares") or (),
            attack=attack,
            out=target,
            device=device,
            progress=listener,
        )
    tried = found.tried.groupby("share", sort=False).agg(score=("score", "first"), worst=("robust", "min"))
    with printing_beside(target):
        if json:
            scores = {f"{share:g}": dict(row) for share, row in tried.iterrows()}
            console.show_json({"weights": str(found.path), "share": found.share, "tried": scores})
            return
        rows = [
            (f"{share:g}", f"{row['score']:.3f}", f"{row['worst']:.1%}", "saved" if share == found.share else "")
            for share, row in tried.iterrows()
        ]
        console.show(["share of the fine-tuned", "overall + worst", "worst class", ""], rows)
        typer.echo(f"{found.path}; selected on the validation split, so its accuracies there are biased upwards")
