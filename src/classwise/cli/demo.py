"""``classwise demo``: the complete workflow on small images, in about three minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.options import new_folder, out_option

RECIPES = {"AT": "at", "CFA-AT": "cfa-at"}
BUDGET = "short"
SMALL = {
    "data.name": "digits",
    "data.augment": "none",
    "data.validation": "0.2",
    "model.name": "small-cnn",
    "model.width": "0.5",
    "threat": "Linf:0.15",
    "attack.steps": "5",
    "attack.step_size": "0.25eps",
    "validation_attack.steps": "5",
    "optimizer.lr": "0.1",
    "batch_size": "64",
}
"""Overrides that make the recipes small."""
ATTACKS = ["pgd:steps=20", "apgd-ce:steps=20"]
"""The attacks of the audits; the usual suite takes three times as long."""
SECONDS_BETWEEN_LINES = 3.0


def demo(
    out: Annotated[Path, out_option("Folder of the runs and pages.")] = Path("runs/demo"),
) -> None:
    """Train, audit and compare two classifiers of digits.

    AT is adversarial training; CFA-AT calibrates it class by class (Wei et al., CVPR 2023). With 54 test images per
    class, two short attacks and one seed, it shows the workflow and does not rank the methods. Finished steps are not
    repeated.

    \b
    Example:
        classwise demo --out runs/demo
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.reporting.text.audit import interval_line, worst_line

    new_folder(out)
    images = cw.load_data("digits", split="test")
    audits: dict[str, cw.Audit] = {}
    with console.resumable("repeat the command to continue"), console.progress(SECONDS_BETWEEN_LINES) as listener:
        for name, recipe in RECIPES.items():
            folder = out / recipe
            listener.log(f"training {recipe} into {folder}")
            run = cw.train(
                recipe, budget=BUDGET, out=folder, resume=folder.exists(), progress=listener, overrides=SMALL
            )
            listener.log(f"attacking {recipe} on {len(images)} test images")
            place = run.audits / "digits-test"
            audits[name] = cw.audit(
                str(run.path), images, SMALL["threat"], ATTACKS, out=place, resume=place.exists(), progress=listener
            )
        listener.log("writing the pages")
    comparison = cw.compare({name: [audit] for name, audit in audits.items()})
    pages = [cw.report(audit, out / f"{RECIPES[name]}.html") for name, audit in audits.items()]
    page = cw.report(comparison, out / "compare.html")
    for name, audit in audits.items():
        typer.echo(f"{name}: {worst_line(audit)}")
    typer.echo(interval_line(next(iter(audits.values()))))
    typer.echo("")
    console.show_result(comparison)
    typer.echo("")
    overrides = " ".join(f"--set {key}={value}" for key, value in SMALL.items())
    typer.echo(f"equivalent command: classwise train {RECIPES['CFA-AT']} --budget {BUDGET} --out runs/mine {overrides}")
    typer.echo(f"audit pages: {', '.join(str(path) for path in pages)}")
    typer.echo(f"page: {page}")
