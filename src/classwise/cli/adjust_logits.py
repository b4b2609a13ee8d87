"""``classwise adjust-logits``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.help import ATTACK
from classwise.cli.options import Device, Json, ValidationAttack, Weights, new_file, out_option, printing_beside
from classwise.reporting.formatting import bare_percent, bracketed


def adjust_logits(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    which: Weights = None,
    attack: ValidationAttack = "pgd:steps=8,step_size=0.25eps,objective=margin",
    folds: Annotated[
        int,
        typer.Option(
            "--folds",
            metavar="N",
            help="Folds of the cross-fitted accuracies; each costs as much as the fit. 0: none.",
            rich_help_panel=ATTACK,
        ),
    ] = 5,
    out: Annotated[
        Path | None,
        out_option("The weights to write.", "RUN/checkpoints/adjusted.safetensors", metavar="FILE"),
    ] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Fit a logit adjustment per class after training.

    The constants are fitted on the validation split of the run and saved in the bias of the last layer.

    The cross-fitted accuracies are means over folds, each attacked under constants fitted on the others. Their
    intervals are approximate for the saved constants: audit the written weights on other images.

    \b
    Example:
        classwise adjust-logits runs/at
        classwise audit runs/at/checkpoints/adjusted.safetensors --data cifar10
    """  # noqa: D301  # \b keeps the lines of the example apart
    target = new_file(out, "--out", json=json)
    with console.progress() as listener:
        found = cw.adjust_logits(
            run, which=which, attack=attack, folds=folds, out=target, device=device, progress=listener
        )
    with printing_beside(target):
        if json:
            classes = found.classes.drop(columns="label").set_index("class").to_dict("index")
            console.show_json({"weights": str(found.path), "classes": classes})
            return
        after = "robust" if folds else "fitted"
        rows = [
            (row["class"], f"{row['adjustment']:+.3f}", _accuracy(row, "before"), _accuracy(row, after))
            for row in found.classes.to_dict("records")
        ]
        title = "robust accuracy on the validation split, percent [95 % interval of all classes]"
        heads = ["class", "constant", "before", "after, cross-fitted" if folds else "after, on the images of the fit"]
        console.show(heads, rows, title)
        typer.echo(f"{found.path}; fitted under {attack}: another attack may find another class weaker")


def _accuracy(row: Mapping[Any, Any], name: str) -> str:
    """An accuracy with its interval, where it has one."""
    if f"{name}_low" not in row:
        return bare_percent(row[name])
    return f"{bare_percent(row[name])} {bracketed(row[f'{name}_low'], row[f'{name}_high'])}"
