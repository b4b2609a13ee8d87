"""``classwise adjust-logits``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.evaluation import Flags, flags
from classwise.cli.fitting import FIT_OPTIONS, FitSource, Seed, fit_arguments
from classwise.cli.help import ATTACK
from classwise.cli.inputs import ModelSource
from classwise.cli.options import Json, ValidationAttack, Weights, grouped, new_file, out_option, printing_beside
from classwise.reporting.formatting import bare_percent, bracketed


@grouped
def adjust_logits(
    model: ModelSource,
    data: FitSource,
    asked: Annotated[Flags, flags(*FIT_OPTIONS)],
    *,
    which: Weights = None,
    attack: ValidationAttack = "pgd:steps=8,step_size=0.25eps,objective=margin",
    folds: Annotated[
        int,
        typer.Option(
            "--folds",
            metavar="N",
            help="Parts of the images that are left out of a fit in turn, to measure the result on them; each costs "
            "less than the fit. 0: only the accuracies on the images of the fit, which are too high.",
            rich_help_panel=ATTACK,
        ),
    ] = 5,
    seed: Seed = None,
    out: Annotated[
        Path | None,
        out_option(
            "The weights to write.", "RUN/checkpoints/adjusted.safetensors; required without a run", metavar="FILE"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Fit a logit adjustment per class after training.

    The constants are fitted on the validation split of a run, or for any other model on the images of --data, which
    should be neither training images nor those of a later audit. They are saved with the weights.

    The cross-fitted accuracies are means over folds, each attacked under constants fitted on the others. Their
    intervals are approximate for the saved constants: audit the written weights on other images.

    \b
    Examples:
        classwise adjust-logits runs/at
        classwise audit runs/at/checkpoints/adjusted.safetensors --data cifar10
        classwise adjust-logits mine:build --weights model.pt --data photos/ \\
            --split val --threat Linf:4/255 --out adjusted.safetensors
        classwise audit mine:build --weights adjusted.safetensors \\
            --data photos/ --split test --threat Linf:4/255
    """  # noqa: D301  # \b keeps the lines of the example apart
    target = new_file(out, "--out", json=json)
    given = fit_arguments(model, data, asked, seed, target)
    with console.progress() as listener:
        found = cw.adjust_logits(
            given.model,
            given.data,
            given.threat,
            which=which,
            attack=attack,
            folds=folds,
            out=target,
            progress=listener,
            **given.options,
        )
    with printing_beside(target):
        if json:
            classes = found.classes.drop(columns="label").set_index("class").to_dict("index")
            console.show_json({"weights": str(found.path), "classes": classes})
            return
        crossed = bool(found.classes["robust"].notna().any())  # not where each class has one image
        after = "robust" if crossed else "fitted"
        rows = [
            (row["class"], f"{row['adjustment']:+.3f}", _accuracy(row, "before"), _accuracy(row, after))
            for row in found.classes.to_dict("records")
        ]
        title = f"robust accuracy on {given.images}, percent [simultaneous 95 % interval]"
        heads = ["class", "constant", "before", "after, cross-fitted" if crossed else "after, on the images of the fit"]
        console.show(heads, rows, title)
        if not found.constants.any():
            typer.echo("nothing is adjusted: on these images every class has the same robust accuracy")
        elif crossed and found.classes["robust"].equals(found.classes["before"].rename("robust")):
            typer.echo("cross-fitted, the adjustment changes the robust accuracy of no class")
        typer.echo(f"{found.path}; fitted under {attack}: another attack may find another class weaker")


def _accuracy(row: Mapping[Any, Any], name: str) -> str:
    """An accuracy with its interval, where it has one."""
    if f"{name}_low" not in row:
        return bare_percent(row[name])
    return f"{bare_percent(row[name])} {bracketed(row[f'{name}_low'], row[f'{name}_high'])}"
