"""``classwise adjust-logits``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classwise.cli import console
from classwise.cli.help import ATTACK, MODEL
from classwise.cli.options import Device, Json, new_file, out_option, printing_beside, refuse_json

if TYPE_CHECKING:
    from classwise.training.posthoc.logit_adjustment import LogitAdjustment


def adjust_logits(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    which: Annotated[
        str | None,
        typer.Option(
            "--which",
            metavar="NAME",
            help="Weights, such as last, best-average, epoch-12 or interpolated.",
            show_default="selected by validation",
            rich_help_panel=MODEL,
        ),
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            "--attack",
            metavar="SPEC",
            help="Attack on the validation split, at the run's radius.",
            rich_help_panel=ATTACK,
        ),
    ] = "pgd:steps=8,step_size=0.25eps",
    out: Annotated[
        Path | None,
        out_option("The weights to write.", "RUN/checkpoints/adjusted.safetensors", metavar="FILE"),
    ] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Fit a logit adjustment per class after training.

    The constants are fitted on the validation split of the run and saved in the bias of the last layer.

    \b
    Example:
        classwise adjust-logits runs/at
        classwise audit runs/at/checkpoints/adjusted.safetensors --data cifar10
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.training.posthoc.logit_adjustment import adjust_logits

    target = new_file(out, "--out")
    refuse_json(json, target)
    with console.progress() as listener:
        found = adjust_logits(
            run,
            which=which,
            attack=attack,
            out=target,
            device=device,
            progress=listener,
        )
    with printing_beside(target):
        _print(found, json)


def _print(found: LogitAdjustment, json: bool) -> None:
    first = found.rounds[found.rounds["round"] == 0].set_index("class")
    last = found.rounds[found.rounds["round"] == found.rounds["round"].max()].set_index("class")
    if json:
        classes = {
            name: {"adjustment": row["adjustment"], "robust_before": first.loc[name, "robust"], "robust": row["robust"]}
            for name, row in last.iterrows()
        }
        console.show_json({"weights": str(found.path), "classes": classes})
        return
    rows = [
        (name, f"{row['adjustment']:+.3f}", f"{first.loc[name, 'robust']:.1%}", f"{row['robust']:.1%}")
        for name, row in last.iterrows()
    ]
    console.show(["class", "constant", "validation robust before", "after"], rows)
    typer.echo(f"{found.path}; the validation split chose it, so its accuracies there are too high")
