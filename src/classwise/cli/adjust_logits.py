"""``classwise adjust-logits``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.options import Device, Json, ValidationAttack, Weights, new_file, out_option, printing_beside


def adjust_logits(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    which: Weights = None,
    attack: ValidationAttack = "pgd:steps=8,step_size=0.25eps",
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
    target = new_file(out, "--out", json=json)
    with console.progress() as listener:
        found = cw.adjust_logits(run, which=which, attack=attack, out=target, device=device, progress=listener)
    by_round = found.rounds.set_index("class").groupby("round")
    before, after = (by_round.get_group(number) for number in (0, found.rounds["round"].max()))
    classes = after[["adjustment", "robust"]].assign(robust_before=before["robust"]).to_dict("index")
    with printing_beside(target):
        if json:
            console.show_json({"weights": str(found.path), "classes": classes})
            return
        rows = [
            (name, f"{row['adjustment']:+.3f}", f"{row['robust_before']:.1%}", f"{row['robust']:.1%}")
            for name, row in classes.items()
        ]
        console.show(["class", "constant", "validation robust before", "after"], rows)
        typer.echo(f"{found.path}; the validation split chose it, so its accuracies there are too high")
